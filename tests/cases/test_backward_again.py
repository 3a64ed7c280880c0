"""More than one backward through a graph, and gradients of gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.steps import EVERYWHERE, all_of, assert_moved, finish, grads_of, same, twins
from tests.right.programs import PLAIN
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import Pair, Side

# What the first backward released has to be read again for the second: slower, and said.
pytestmark = pytest.mark.filterwarnings("ignore:a parameter was gathered outside the schedule:RuntimeWarning")


class TwoLosses(nn.Module):
    """Two losses over shared layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x).tanh()
        return self.second(hidden).square().mean(), self.third(hidden).cos().mean()


@EVERYWHERE
def test_a_retained_graph_gives_the_gradients_twice(place: dict[str, str], disk: Path) -> None:
    own = twins(disk, TwoLosses(), place)

    def act(side: Side) -> dict[str, Any]:
        loss = sum(side.model(PLAIN[0]))
        loss.backward(retain_graph=True)
        once = grads_of(side)
        made = finish(side, loss)
        for name, grad in once.items():
            assert torch.equal(made[name], 2 * grad), name
        return made

    for _ in range(3):
        same(own, act)
    assert_moved(own, place)


def test_two_losses_of_one_forward_run_backward_one_after_the_other(disk: Path) -> None:
    own = twins(disk, TwoLosses(), ALL_ON_NVME, backend="aot_eager")

    def act(side: Side) -> dict[str, Any]:
        one, other = side.model(PLAIN[0])
        one.backward(retain_graph=True)
        return grads_of(side) | {f"then {name}": value for name, value in finish(side, other).items()}

    for _ in range(3):
        same(own, act)
    assert_moved(own, ALL_ON_NVME)


def test_a_retained_graph_keeps_its_values_while_others_run(disk: Path) -> None:
    """What was gathered and freed for the first backward is filled with other bytes before the second."""
    own = twins(disk, TwoLosses(), ALL_ON_NVME)

    def act(side: Side) -> dict[str, Any]:
        kept = sum(side.model(PLAIN[0]))
        kept.backward(retain_graph=True)
        for x in PLAIN[1:]:
            sum(side.model(x)).backward()
        with torch.no_grad():
            side.model(10 * PLAIN[1])
        return finish(side, kept)

    for _ in range(2):
        same(own, act)
    assert_moved(own, ALL_ON_NVME)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())[:, 0]


def penalty(critic: Any, x: torch.Tensor) -> torch.Tensor:
    """How far the slope of the critic is from one: a loss over a gradient."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def trains_on(own: Pair) -> None:
    for x in PLAIN:
        same(own, lambda side, x=x: finish(side, side.model(x).mean()))


def test_a_gradient_of_a_gradient_is_refused_and_harms_nothing(disk: Path) -> None:
    own = twins(disk, Critic(), ALL_ON_NVME, backend="aot_eager")
    trains_on(own)

    def act(side: Side) -> dict[str, Any]:
        before = all_of(side)
        loss = penalty(side.model, PLAIN[0])
        with pytest.raises(RuntimeError, match="double backward"):
            loss.backward()
        for name, value in all_of(side).items():
            assert not isinstance(value, torch.Tensor) or torch.equal(value, before[name]), name
        return grads_of(side) | {"penalty": loss.detach()}

    same(own, act)
    trains_on(own)
    assert_moved(own, ALL_ON_NVME)


def test_a_gradient_of_a_gradient_is_right_through_the_module_itself(disk: Path) -> None:
    own = twins(disk, Critic(), ALL_ON_NVME)
    trains_on(own)
    for x in PLAIN:
        same(own, lambda side, x=x: finish(side, side.model(x).mean() + penalty(side.module, x)))
    assert_moved(own, ALL_ON_NVME)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_that_keep_their_graph_are_right_and_refuse_another_backward(disk: Path) -> None:
    own = twins(disk, Critic(), ALL_ON_NVME, backend="aot_eager")

    def act(side: Side) -> dict[str, Any]:
        side.model(PLAIN[0]).square().mean().backward(create_graph=True)
        made = grads_of(side)
        with pytest.raises(RuntimeError, match="double backward"):
            side.module.first.weight.grad.square().sum().backward()
        side.optimizer.step()
        side.optimizer.zero_grad()
        return made | all_of(side)

    same(own, act)
    trains_on(own)
    assert_moved(own, ALL_ON_NVME)
