from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.right.parameters import IDS, Shared
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_equal, assert_on_nvme, copied, gradients
from tests.training.looks import held_files, in_use
from tests.training.odd import states
from tests.training.pair import Pair, Side, pair

DATA = [{"ids": ids} for ids in IDS]
PLACES = {"grads on nvme": ALL_ON_NVME, "grads on host": ON_NVME, "all on host": ON_HOST}


@pytest.fixture(scope="module", params=PLACES)
def shared(request: pytest.FixtureRequest, lasting_disk: Path) -> Iterator[Pair]:
    """Twins with tied weights. Each test leaves them equal and without gradients; at the end the bytes are counted."""
    place = PLACES[request.param]
    torch.manual_seed(0)
    with functorch_config.patch(donated_buffer=False):  # else the twin can retain no graph
        made = pair(lasting_disk, Shared(), steps=0, place=place)
        yield made
    kinds = {"params": "param", "grads": "grad", "optimizer": "state"}
    assert_on_nvme(made.ours.model, *(kinds[kind] for kind, home in place.items() if home == "nvme"))


def backward(side: Side, batch: int = 0, factor: float = 1.0) -> None:
    (side.forward(DATA[batch]) * factor).backward()


def finish(shared: Pair) -> None:
    shared.assert_equal_gradients()
    for side in shared.sides():
        side.optimizer.step()
    shared.assert_equal_gradients()
    shared.each(lambda side: side.optimizer.zero_grad())
    shared.assert_equal_weights()
    assert_equal(*shared.each(states), "optimizer's")
    shared.same(partial(Side.step, batch=DATA[1]))
    shared.assert_equal_weights()


CLEARS: dict[str, Callable[[Side], None]] = {
    "the optimizer's, to None": lambda side: side.optimizer.zero_grad(),
    "the optimizer's, to zero": lambda side: side.optimizer.zero_grad(set_to_none=False),
    "the model's, to None": lambda side: side.module.zero_grad(),
    "the compiled model's, to zero": lambda side: side.model.zero_grad(set_to_none=False),
}


def test_gradients_add_up_over_micro_batches_however_they_were_cleared(shared: Pair) -> None:
    for clear in CLEARS.values():
        for batch in range(3):
            shared.each(partial(backward, batch=batch, factor=1 / 3))
            shared.assert_equal_gradients()
        for side in shared.sides():
            side.optimizer.step()
            clear(side)
        shared.assert_equal_gradients()
        shared.assert_equal_weights()
    finish(shared)


def test_gradients_add_to_what_a_user_put_there_before(shared: Pair) -> None:
    for side in shared.sides():
        side.module.left.weight.grad = torch.full((8, 8), 0.5)
        backward(side)
    finish(shared)


CLIPS: dict[str, Callable[[Any], Any]] = {
    "norm": partial(clip_grad_norm_, max_norm=0.01),
    "norm, tensor by tensor": partial(clip_grad_norm_, max_norm=0.01, foreach=False),
    "norm, all at once": partial(clip_grad_norm_, max_norm=0.01, foreach=True),
    "largest": partial(clip_grad_norm_, max_norm=0.01, norm_type=float("inf")),
    "value, tensor by tensor": partial(clip_grad_value_, clip_value=1e-3, foreach=False),
    "value, all at once": partial(clip_grad_value_, clip_value=1e-3, foreach=True),
}


def test_gradients_are_clipped_and_tied_weights_count_once(shared: Pair) -> None:
    parameters = list(shared.ours.module.parameters())
    assert len(parameters) < len(list(shared.ours.module.named_parameters(remove_duplicate=False)))
    for name, clip in CLIPS.items():
        shared.each(backward)
        before = copied(gradients(shared.ours.module)).values()
        norms = shared.each(lambda side, clip=clip: clip(side.module.parameters()))
        assert norms[0] == norms[1], name
        if name == "norm":
            assert torch.equal(norms[0], torch.stack([grad.norm() for grad in before]).norm())
        assert any(not torch.equal(a, p.grad) for a, p in zip(before, parameters, strict=True)), f"{name} did nothing"
        finish(shared)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_grad_scaler_leaves_out_the_step_that_overflows(fused: bool, shared: Pair) -> None:
    scalers = shared.each(lambda side: torch.amp.GradScaler("cpu", init_scale=1024.0))
    before = [side.optimizer for side in shared.sides()]
    for side in shared.sides():
        side.optimizer = torch.optim.AdamW(side.module.parameters(), lr=1e-2, fused=fused)
    for factor in (1.0, float("inf"), 1.0, 1.0):
        weights = copied(dict(shared.ours.module.named_parameters()))
        for side, scaler in zip(shared.sides(), scalers, strict=True):
            scaler.scale(side.forward(DATA[0]) * factor).backward()
            scaler.step(side.optimizer)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        assert_equal(gradients_or_nan(shared.ours), gradients_or_nan(shared.theirs), "gradient of")
        shared.each(lambda side: side.optimizer.zero_grad())
        shared.assert_equal_weights()
        assert_equal(*shared.each(states), "optimizer's")
        changed = not torch.equal(weights["left.weight"], shared.ours.module.left.weight)
        assert changed == (factor == 1.0), "a step that overflowed changed a weight, or one that did not changed none"
    assert scalers[0].get_scale() == 512.0
    for side, optimizer in zip(shared.sides(), before, strict=True):
        side.optimizer = optimizer
    finish(shared)


def gradients_or_nan(side: Side) -> dict[str, torch.Tensor]:
    """Gradients in which a NaN equals a NaN."""
    return {name: p.grad.nan_to_num(nan=7.0) for name, p in side.module.named_parameters()}


def test_a_grad_scaler_unscales_before_clipping(shared: Pair) -> None:
    scalers = shared.each(lambda side: torch.amp.GradScaler("cpu", init_scale=100.0))
    for side, scaler in zip(shared.sides(), scalers, strict=True):
        scaler.scale(side.forward(DATA[0])).backward()
        scaler.unscale_(side.optimizer)
    shared.assert_equal_gradients()
    for side, scaler in zip(shared.sides(), scalers, strict=True):
        clip_grad_norm_(side.module.parameters(), 0.01)
        scaler.step(side.optimizer)
        scaler.update()
    finish(shared)


def test_hooks_on_weights_and_on_an_activation_change_gradients(shared: Pair) -> None:
    hooks = []
    seen: list[list[float]] = [[], []]
    for side, norms in zip(shared.sides(), seen, strict=True):
        weight = side.module.embedding.weight
        hooks.append(weight.register_hook(lambda grad: grad * 0.5))
        keep = lambda p, norms=norms: norms.append(p.grad.norm().item())  # noqa: E731
        hooks.append(weight.register_post_accumulate_grad_hook(keep))
        loss = side.forward(DATA[0]) * 1.0
        loss.register_hook(lambda grad: grad * 3)
        loss.backward()
    assert seen[0] == seen[1] and len(seen[0]) == 1
    for hook in hooks:
        hook.remove()
    finish(shared)


def test_a_hook_may_step_and_clear_as_soon_as_a_gradient_is_there(shared: Pair) -> None:
    hooks = []
    for side in shared.sides():
        optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in side.module.parameters()}

        def step(p: torch.Tensor, optimizers: dict[torch.Tensor, torch.optim.Optimizer] = optimizers) -> None:
            optimizers[p].step()
            p.grad = None

        hooks += [p.register_post_accumulate_grad_hook(step) for p in optimizers]
    for batch in (0, 1, 2):
        shared.each(partial(backward, batch=batch))
        assert set(gradients(shared.ours.module).values()) == {None}
        shared.assert_equal_weights()
    for hook in hooks:
        hook.remove()
    finish(shared)


def test_a_retained_graph_gives_the_gradients_that_it_gives_in_memory(shared: Pair) -> None:
    for side in shared.sides():
        loss = side.forward(DATA[0])
        loss.backward(retain_graph=True)
        loss.backward()
    finish(shared)


def test_what_a_user_does_to_a_gradient_goes_into_the_step(shared: Pair) -> None:
    for side in shared.sides():
        backward(side)
        side.module.left.weight.grad.mul_(3)
        side.module.left.bias.grad = torch.full((8,), 0.25)
        side.module.turned.bias.grad = None
    finish(shared)


class Deep(torch.nn.Module):
    """What it saves for backward weighs more than its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).tanh().square().mean()


def resident() -> int:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def test_forwards_whose_backward_never_runs_leave_nothing_behind(disk: Path) -> None:
    torch.manual_seed(0)
    own = pair(disk, Deep(), steps=0, place=ALL_ON_NVME)
    batch = {"x": torch.linspace(-1, 1, 8192 * 64).reshape(8192, 64)}  # each layer saves 2 MiB
    own.same(partial(Side.step, batch=batch))
    files, before = None, 0
    for i in range(22):
        own.ours.forward(batch)
        assert in_use(own.ours.module) == 0
        if i == 1:  # by then every buffer that is kept for the next time has been made
            files, before = held_files(disk), resident()
    assert held_files(disk) == files
    assert resident() - before < 20 << 20, "20 forwards save 80 MiB"
    own.same(partial(Side.step, batch=batch))
    own.assert_equal_weights()
