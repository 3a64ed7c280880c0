"""Parameters read outside the compiled region: their shapes, and losses with a term over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import zcompiler
from tests.cases.both import Batch, assert_moved, inputs, sgd, train, twins
from tests.right.programs import Two
from tests.right.twins import ALL_ON_NVME, moved
from tests.training.pair import Pair, Side

DATA = inputs(4, 4, 8)
Penalty = Callable[[Side], torch.Tensor]


def two() -> nn.Module:
    torch.manual_seed(8)
    return Two()


def with_penalty(penalty: Penalty) -> Callable[[Side, Batch], torch.Tensor]:
    def backward(side: Side, batch: Batch) -> torch.Tensor:
        loss = side.forward(dict(batch)) + penalty(side)
        loss.backward()
        return loss.detach()

    return backward


def squares(side: Side) -> torch.Tensor:
    return 0.1 * sum((p.square().sum() for p in side.module.parameters()), torch.zeros(()))


def assert_summed_outside(own: Pair) -> None:
    """Gradients went to nvme as they were made; autograd then added the penalty's to them, in a tensor of its own."""
    stats = zcompiler.stats(own.ours.model)
    assert stats.read["nvme"]["param"] > 0 and stats.written["nvme"]["param"] > 0
    assert stats.written["nvme"]["grad"] > 0


def test_a_loss_with_the_squares_of_all_parameters(disk: Path) -> None:
    own = twins(disk, two(), sgd)
    shapes = {name: p.shape for name, p in own.theirs.module.named_parameters()}

    def look(side: Side) -> torch.Tensor:
        parameters = dict(side.module.named_parameters())
        assert {name: p.shape for name, p in parameters.items()} == shapes
        assert [p.numel() for p in parameters.values()] == [64, 8, 64, 8]
        return torch.stack([p.norm() for p in parameters.values()])

    train(own, DATA, before_step=look, backward=with_penalty(squares))
    own.same(look)
    assert_summed_outside(own)


def test_penalties_of_other_kinds_in_turn(disk: Path) -> None:
    own = twins(disk, two())
    start = [p.detach().clone() for p in own.theirs.module.parameters()]

    def distance(side: Side) -> torch.Tensor:
        """From where training began, as for fine-tuning that must not forget."""
        return torch.stack([(p - s).abs().sum() for p, s in zip(side.module.parameters(), start, strict=True)]).sum()

    def orthogonality(side: Side) -> torch.Tensor:
        weight = side.module.first.weight
        return (weight @ weight.t() - torch.eye(8)).square().sum()

    def as_vector(side: Side) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(side.module.parameters()).norm()

    penalties: tuple[Penalty, ...] = (distance, orthogonality, as_vector)
    for penalty in penalties:
        train(own, DATA, backward=with_penalty(penalty))
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_a_penalty_with_a_backward_of_its_own_before_or_after(disk: Path) -> None:
    own = twins(disk, two())

    def first(side: Side, batch: Batch) -> torch.Tensor:
        penalty = squares(side)
        penalty.backward()
        loss = side.forward(dict(batch))
        loss.backward()
        return (penalty + loss).detach()

    def last(side: Side, batch: Batch) -> torch.Tensor:
        penalty = squares(side)  # made before the forward, sent back after it
        loss = side.forward(dict(batch))
        loss.backward()
        penalty.backward()
        return (penalty + loss).detach()

    for backward in (first, last):
        train(own, DATA, backward=backward)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_a_penalty_over_a_parameter_that_the_compiled_region_does_not_use(disk: Path) -> None:
    class Spare(Two):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.linspace(-1, 1, 24).reshape(4, 6))

    torch.manual_seed(8)
    own = twins(disk, Spare())
    train(own, DATA, backward=with_penalty(squares))
    assert not torch.equal(own.ours.module.spare, torch.linspace(-1, 1, 24).reshape(4, 6))
    assert_summed_outside(own)
    assert all(moved(own.ours.model, "state"))
