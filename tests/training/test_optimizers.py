from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import zcompiler
from tests.right.twins import assert_on_nvme
from tests.training.odd import ELEMENTWISE, MEMORY, assert_the_same, data, odd, trained, updated_units
from tests.training.pair import Pair, Side, pair


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    """Twins, for optimizers to follow one another on them."""
    return pair(lasting_disk, odd(), steps=0, memory=MEMORY)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_optimizer_updates_slices_bit_for_bit(name: str, shared: Pair) -> None:
    for side in shared.sides():
        side.optimizer = ELEMENTWISE[name](side.module.parameters())
    for step, batch in enumerate(data(4)):
        shared.same(partial(Side.step, batch=batch))
        if step == 0:
            zcompiler.reset_stats(shared.ours.model)
    assert_the_same(shared)
    assert_on_nvme(shared.ours.model, "param", "state")
    assert "wide[1]" in updated_units(shared), "no parameter was cut: the test is not about slices any more"
    assert zcompiler.stats(shared.ours.model).fallbacks == ()


class HandWritten(optim.Optimizer):
    """One that torch does not know: sign of the gradient, times the norm of the parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average.lerp_(p.grad, 0.5)
                    p.sub_(average.sign() * p.norm(), alpha=group["lr"])


def test_an_optimizer_that_torch_does_not_know_runs_as_it_is_and_is_reported(disk: Path) -> None:
    with pytest.warns(RuntimeWarning, match="HandWritten"):
        made = trained(disk, HandWritten)
    assert_the_same(made)
    assert any("HandWritten" in said for said in zcompiler.stats(made.ours.model).fallbacks)


class Doubled(optim.AdamW):
    """A subclass of one that torch knows must not be taken for it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(2)
                    p.mul_(0.5)
        return super().step(closure)


def test_a_subclass_with_a_step_of_its_own_runs_as_it_is_and_is_reported(disk: Path) -> None:
    with pytest.warns(RuntimeWarning, match="Doubled"):
        made = trained(disk, partial(Doubled, lr=1e-2))
    assert_the_same(made)
    assert any("Doubled" in said for said in zcompiler.stats(made.ours.model).fallbacks)


def test_lbfgs_calls_its_closure_as_often_as_it_wants(disk: Path) -> None:
    own = pair(disk, odd(), lambda p: optim.LBFGS(p, lr=0.1, max_iter=5), steps=0)

    def step(side: Side) -> torch.Tensor:
        def closure() -> torch.Tensor:
            side.optimizer.zero_grad()
            loss = side.forward(data(1)[0])
            loss.backward()
            return loss

        return side.optimizer.step(closure).detach()

    with pytest.warns(RuntimeWarning, match="LBFGS"):
        for _ in range(3):
            own.same(step)
    own.assert_equal_weights()
