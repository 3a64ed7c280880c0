"""Gradients between backward and step: they add up over micro-batches, and are clipped as in memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.both import (
    Batch,
    assert_moved,
    backward,
    inputs,
    sgd,
    train,
    twins,
)
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_equal, assert_on_nvme, copied, gradients
from tests.training.pair import Pair, Side


class Steep(nn.Module):
    """A layer times fifty, so that its gradients are worth clipping; its head may be tied to its first layer."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.first, self.optional, self.last = (nn.Linear(8, 8) for _ in range(3))
        with torch.no_grad():
            self.first.weight.mul_(50)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor, parts: int = 1, optional: bool = False) -> torch.Tensor:
        x = self.first(x)
        if optional:
            x = self.optional(x)
        return self.last(x).square().mean() / parts


def steep(tied: bool = False) -> nn.Module:
    torch.manual_seed(6)
    return Steep(tied)


def calm() -> nn.Module:
    """Without the steep layer: for comparisons that are not bit for bit."""
    module = steep()
    with torch.no_grad():
        module.first.weight.div_(50)
    return module


WHOLE = inputs(4, 32, 8)


def micro_batches(batch: Batch) -> list[dict[str, Any]]:
    return [{"x": x, "parts": 4} for x in batch["x"].split(8)]


@pytest.mark.parametrize("grads", ["nvme", "host"])
def test_four_micro_batches_are_one_batch(grads: str, disk: Path) -> None:
    place = {**ON_NVME, "grads": grads}
    own = twins(disk, calm(), place=place)
    other = copy.deepcopy(own.theirs.module)
    whole = Side(other, torch.compile(other, backend="aot_eager"), torch.optim.AdamW(other.parameters(), lr=1e-2))
    for batch in WHOLE:
        for side in own.sides():
            for part in micro_batches(batch):
                backward(side, part)
        backward(whole, batch)
        own.assert_equal_gradients()
        for name, grad in gradients(own.ours.module).items():
            if grad is not None:
                torch.testing.assert_close(grad, gradients(other)[name], rtol=1e-6, atol=1e-6)
        for side in (*own.sides(), whole):
            side.optimizer.step()
            side.optimizer.zero_grad()
        own.assert_equal_weights()
    assert_on_nvme(own.ours.model, "param", "state", *(["grad"] if grads == "nvme" else []))


def add_up(side: Side, batch: Batch) -> torch.Tensor:
    return torch.stack([backward(side, part) for part in micro_batches(batch)]).sum()


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    """Twins, with all of ours on nvme, without momentum. Each test leaves them equal and without gradients."""
    return twins(lasting_disk, steep(), partial(torch.optim.SGD, lr=1e-5))  # what is not clipped is steep


def test_a_layer_that_only_one_micro_batch_uses(shared: Pair) -> None:
    def add_up_with_option(side: Side, batch: Batch) -> torch.Tensor:
        parts = [{**part, "optional": i == 2} for i, part in enumerate(micro_batches(batch))]
        return torch.stack([backward(side, part) for part in parts]).sum()

    def of_the_layer(side: Side) -> torch.Tensor:
        return side.module.optional.weight.grad.clone()

    train(shared, WHOLE[:2], before_step=of_the_layer, backward=add_up_with_option)
    assert_moved(shared, ALL_ON_NVME, "param", "grad")


def test_backward_adds_to_a_gradient_that_the_user_made(shared: Pair) -> None:
    def onto_own(side: Side, batch: Batch) -> torch.Tensor:
        side.own = [torch.full_like(p, 0.5) for p in side.module.parameters()]  # type: ignore[attr-defined]
        for p, grad in zip(side.module.parameters(), side.own, strict=True):  # type: ignore[attr-defined]
            p.grad = grad
        return backward(side, batch)

    def of_the_user(side: Side) -> torch.Tensor:
        return torch.cat([grad.flatten() for grad in side.own])  # type: ignore[attr-defined]

    train(shared, WHOLE[:2], before_step=of_the_user, backward=onto_own)


def test_micro_batches_do_not_change_what_a_user_took_of_a_gradient_before(shared: Pair) -> None:
    def take_between(side: Side, batch: Batch) -> torch.Tensor:
        first, *others = micro_batches(batch)
        backward(side, first)
        kept = copied(gradients(side.module))
        alias = gradients(side.module)
        for p in side.module.parameters():
            p.grad = None
        losses = [backward(side, part) for part in others]
        assert_equal(alias, kept, "kept gradient of")
        return torch.stack(losses).sum()

    train(shared, WHOLE[:2], backward=take_between)


def clip(side: Side) -> torch.Tensor:
    norm = nn.utils.clip_grad_norm_(side.module.parameters(), 1.0)
    assert norm > 1, "nothing to clip"
    assert abs(by_hand(side) - 1) < 1e-5
    return norm


def by_hand(side: Side) -> float:
    """The norm of all gradients, each parameter counted once."""
    squares = [p.grad.double().square().sum().item() for p in side.module.parameters() if p.grad is not None]
    return math.sqrt(sum(squares))


@pytest.mark.parametrize(
    ("tied", "place"),
    [(False, ALL_ON_NVME), (True, ALL_ON_NVME), (True, ON_HOST)],
    ids=["nvme", "tied, nvme", "tied, host"],
)
def test_clipping_by_norm(tied: bool, place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, steep(tied), sgd, place)
    norms: list[tuple[float, float]] = []

    def clip_and_check(side: Side) -> torch.Tensor:
        before = by_hand(side)
        norms.append((clip(side).item(), before))
        return torch.tensor(norms[-1][0])

    train(own, WHOLE[:3], before_step=clip_and_check)
    assert len(norms) == 6
    for said, counted_once in norms:
        assert math.isclose(said, counted_once, rel_tol=1e-6)
    assert_moved(own, place, "param", "grad")


def in_two_halves(side: Side) -> torch.Tensor:
    parameters = list(side.module.parameters())
    return torch.stack([nn.utils.clip_grad_norm_(half, 0.3) for half in (parameters[:2], parameters[2:])])


def in_two_calls(side: Side) -> torch.Tensor:
    grads = [p.grad for p in side.module.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    nn.utils.clip_grads_with_norm_(side.module.parameters(), 1.0, norm)
    return norm


def refused_then_forced(side: Side) -> torch.Tensor:
    side.module.first.weight.grad[0, 0] = torch.inf
    before = copied(gradients(side.module))
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(side.module.parameters(), 1.0, error_if_nonfinite=True)
    assert_equal(gradients(side.module), before, "refused gradient of")
    nn.utils.clip_grad_value_(side.module.parameters(), 0.01)
    return nn.utils.clip_grad_norm_(side.module.parameters(), 1.0)


CLIPS: dict[str, Callable[[Side], torch.Tensor]] = {
    "twice": lambda side: clip(side) + nn.utils.clip_grad_norm_(side.module.parameters(), 0.5),
    "by the largest": lambda side: nn.utils.clip_grad_norm_(side.module.parameters(), 0.1, norm_type=math.inf),
    "by the sum": lambda side: nn.utils.clip_grad_norm_(side.module.parameters(), 0.1, norm_type=1.0),
    "one by one": lambda side: nn.utils.clip_grad_norm_(side.module.parameters(), 0.1, foreach=False),
    "at once": lambda side: nn.utils.clip_grad_norm_(side.module.parameters(), 0.1, foreach=True),
    "in halves": in_two_halves,
    "in two calls": in_two_calls,
    "by value": lambda side: nn.utils.clip_grad_value_(side.module.parameters(), 0.05) or torch.zeros(()),
    "after a refusal": refused_then_forced,
}


@pytest.mark.parametrize("how", CLIPS)
def test_clipping_in_other_ways(how: str, shared: Pair) -> None:
    train(shared, WHOLE[:1], before_step=CLIPS[how])
    assert_moved(shared, ALL_ON_NVME, "param", "grad")


def test_clipping_what_micro_batches_added_up(shared: Pair) -> None:
    train(shared, WHOLE[:2], before_step=CLIPS["at once"], backward=add_up)
