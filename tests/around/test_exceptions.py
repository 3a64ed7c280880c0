"""An exception anywhere in a step, caught by the user: what follows is as right as it is in memory."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.right.models import Mlp
from tests.right.twins import ALL_ON_NVME
from tests.training.looks import in_use
from tests.training.pair import DATA, Pair, Side, pair

IN_FORWARD, IN_BACKWARD = 0, 1


@torch.library.custom_op("zinf_tests::trap", mutates_args=(), schema="(Tensor x, Tensor armed, int at) -> Tensor")
def trap(x: torch.Tensor, armed: torch.Tensor, at: int) -> torch.Tensor:
    """A kernel that fails inside a compiled graph when it is told to."""
    if armed[at]:
        raise ValueError(f"trapped at {at}")
    return x.clone()


@trap.register_fake
def _(x: torch.Tensor, armed: torch.Tensor, at: int) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _back(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return trap(grad, ctx.saved_tensors[0], IN_BACKWARD), None, None


trap.register_autograd(_back, setup_context=_keep)


class Trapped(Mlp):
    """With the trap behind the middle layer, so that units before and after it are on their way when it closes."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, armed: torch.Tensor | None = None) -> torch.Tensor:
        armed = torch.zeros(2, dtype=torch.bool) if armed is None else armed
        x = self.dropout(torch.nn.functional.gelu(self.layers[0](x)))
        x = trap(self.layers[1](x), armed, IN_FORWARD)
        return torch.nn.functional.mse_loss(self.layers[2](x), labels)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Twins, with all states of ours on nvme. Each test leaves them equal and without gradients."""
    torch.manual_seed(3)
    return pair(tmp_path_factory.mktemp("nvme"), Trapped(), place=ALL_ON_NVME, backend="aot_eager")


@pytest.fixture(autouse=True)
def goes_on(shared: Pair) -> Iterator[None]:
    """After each test nothing is held, and training goes on."""
    yield
    shared.each(lambda side: side.optimizer.zero_grad())
    gc.collect()
    assert in_use(shared.ours.module) == 0
    shared.goes_on()


def armed(at: int) -> dict[str, torch.Tensor]:
    switches = torch.zeros(2, dtype=torch.bool)
    switches[at] = True
    return {**DATA[0], "armed": switches}


def test_a_kernel_that_fails_in_forward(shared: Pair) -> None:
    for side in shared.sides():
        with pytest.raises(ValueError, match="trapped at 0"):
            side.forward(armed(IN_FORWARD))


def test_a_kernel_that_fails_in_backward(shared: Pair) -> None:
    for side in shared.sides():
        side.forward(DATA[1]).backward()  # these gradients stay
        loss = side.forward(armed(IN_BACKWARD))
        with pytest.raises(ValueError, match="trapped at 1"):
            loss.backward()
    shared.assert_equal_gradients()


def test_a_hook_of_the_model_that_fails(shared: Pair) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("as asked")

    for side in shared.sides():
        hook = side.module.register_forward_hook(fail)
        with pytest.raises(KeyError, match="as asked"):
            side.forward(DATA[0])
        hook.remove()


def test_a_hook_on_a_gradient_that_fails(shared: Pair) -> None:
    def fail(grad: torch.Tensor) -> None:
        raise KeyError("as asked")

    for side in shared.sides():
        hook = side.module.layers[1].weight.register_hook(fail)
        with pytest.raises(KeyError, match="as asked"):
            side.forward(DATA[0]).backward()
        hook.remove()
    shared.assert_equal_gradients()


def test_a_hook_after_a_gradient_was_added_that_fails(shared: Pair) -> None:
    def fail(p: torch.Tensor) -> None:
        raise KeyError("as asked")

    for side in shared.sides():
        hook = side.module.layers[0].bias.register_post_accumulate_grad_hook(fail)
        with pytest.raises(KeyError, match="as asked"):
            side.forward(DATA[0]).backward()
        hook.remove()
    shared.assert_equal_gradients()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_on_the_optimizer_step_that_fails(when: str, shared: Pair) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("as asked")

    for side in shared.sides():
        side.forward(DATA[0]).backward()
        register = {"before": side.optimizer.register_step_pre_hook, "after": side.optimizer.register_step_post_hook}
        hook = register[when](fail)
        with pytest.raises(KeyError, match="as asked"):
            side.optimizer.step()
        hook.remove()
    shared.assert_equal_gradients()
    shared.assert_equal_weights()
    for side in shared.sides():
        side.optimizer.step()
    shared.assert_equal_gradients()


def test_a_closure_that_fails(shared: Pair) -> None:
    def fail(side: Side) -> None:
        def closure() -> torch.Tensor:
            side.optimizer.zero_grad()
            side.forward(DATA[0]).backward()
            raise KeyError("as asked")

        with pytest.raises(KeyError, match="as asked"):
            side.optimizer.step(closure)

    shared.each(fail)
    shared.assert_equal_gradients()
    shared.assert_equal_weights()


def test_a_setting_that_the_optimizer_cannot_use(shared: Pair) -> None:
    for side in shared.sides():
        side.forward(DATA[0]).backward()
        betas = side.optimizer.param_groups[0].pop("betas")
        with pytest.raises(KeyError, match="betas"):
            side.optimizer.step()
        side.optimizer.param_groups[0]["betas"] = betas
    shared.assert_equal_gradients()
    shared.assert_equal_weights()
    for side in shared.sides():
        side.optimizer.step()
    shared.assert_equal_gradients()
    shared.assert_equal_weights()


class HalfSparse(torch.nn.Module):
    """One gradient that AdamW refuses, in its own step, after ours."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 6, sparse=True)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids)).square().mean()


def test_a_step_that_fails_leaves_no_gradient_behind_for_the_next(disk: Path) -> None:
    torch.manual_seed(0)
    own = pair(disk, HalfSparse(), steps=0)
    for side in own.sides():
        # What was saved before the step is all it takes to go on.
        saved = copy.deepcopy((side.module.state_dict(), side.optimizer.state_dict()))
        side.forward({"ids": torch.tensor([1, 2, 3])}).backward()
        with pytest.raises(RuntimeError, match="sparse"):
            side.optimizer.step()
        side.optimizer.zero_grad()
        side.module.load_state_dict(saved[0])
        side.optimizer.load_state_dict(saved[1])
        side.module.embedding.requires_grad_(False)
    for i in range(3):
        own.same(partial(Side.step, batch={"ids": torch.tensor([i, 2, 5])}))
        own.assert_equal_weights()
