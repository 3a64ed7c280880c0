"""Layers that backward computes again: frozen ones, and those that two forwards of one backward went through."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.cases.steps import EVERYWHERE, assert_moved, finish, same, twins
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import Side

X = torch.linspace(-1, 1, 5 * 16).reshape(5, 16)


class Block(nn.Module):
    """A frozen layer with a trainable adapter."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.base, self.dropout = nn.RMSNorm(16), nn.Linear(16, 16), nn.Dropout(dropout)
        self.down, self.up = nn.Linear(16, 3, bias=False), nn.Linear(3, 16, bias=False)
        self.norm.requires_grad_(False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.dropout(self.base(h) + self.up(self.down(h))).tanh()


class Blocks(nn.Module):
    """Each block is checkpointed, in the order given: a number may come twice."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2), dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(max(order) + 1))
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in self.order:
            x = checkpoint(self.blocks[i], x, use_reentrant=False)
        return x.square().mean()


def step(side: Side, x: torch.Tensor = X) -> dict[str, Any]:
    return finish(side, side.forward({"x": x}))


@EVERYWHERE
def test_frozen_layers_with_adapters_are_computed_again(place: dict[str, str], disk: Path) -> None:
    own = twins(disk, Blocks(), place)
    norm = own.ours.module.blocks[1].norm.weight.detach().clone()
    for _ in range(4):
        same(own, step)
    assert_moved(own, place)
    assert torch.equal(own.ours.module.blocks[1].norm.weight, norm)


def test_frozen_layers_that_thaw_are_computed_again_and_train(disk: Path) -> None:
    own = twins(disk, Blocks(), ALL_ON_NVME)
    for thawed in (False, True, False):
        for side in own.sides():
            for block in side.module.blocks:
                block.norm.requires_grad_(thawed)
        for _ in range(2):
            same(own, step, f"thawed {thawed}, the")
    assert_moved(own, ALL_ON_NVME)


def test_a_layer_that_is_computed_again_twice_draws_the_masks_it_drew(disk: Path) -> None:
    """The first block has nothing to train, the second comes twice with other dropout masks."""
    module = Blocks((0, 1, 1), dropout=0.4)
    module.blocks[0].requires_grad_(False)
    own = twins(disk, module, ALL_ON_NVME)
    for _ in range(3):
        same(own, step)
    assert_moved(own, ALL_ON_NVME)


class Policy(nn.Module):
    """A score for each row."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.checkpointed = nn.Linear(16, 11), nn.Linear(11, 1), checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.hidden, x, use_reentrant=False) if self.checkpointed else self.hidden(x)
        return self.second(x)[:, 0]

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.first(x).tanh(), 0.3)


def preference_step(side: Side, reference: Any = None, rejected: int = 5) -> dict[str, Any]:
    """Two forwards, a reference between them, and one backward; as direct preference optimization does it."""
    reference = reference if reference is not None else side.model
    torch.manual_seed(5)
    one, other = X, X.flip(1)[:rejected]
    chosen = side.model(one)
    with torch.no_grad():
        margin = reference(one).mean() - reference(other).mean()
    loss = -nn.functional.logsigmoid(chosen.mean() - side.model(other).mean() - margin)
    return finish(side, loss)


@EVERYWHERE
@pytest.mark.parametrize("checkpointed", [False, True], ids=["saved", "computed again"])
def test_two_forwards_and_one_backward_with_a_reference_between(
    checkpointed: bool, place: dict[str, str], disk: Path
) -> None:
    own = twins(disk, Policy(checkpointed), place)
    for _ in range(4):
        same(own, preference_step)
    assert_moved(own, place, summed=True)


def test_two_forwards_of_different_sizes_and_one_backward(disk: Path) -> None:
    """The second forward runs through a graph of its own, over the same weights."""
    own = twins(disk, Policy(True), ALL_ON_NVME)
    for rejected in (5, 3, 2, 5):
        same(own, partial(preference_step, rejected=rejected), f"with {rejected} rejected, the")
    assert_moved(own, ALL_ON_NVME, summed=True)


def test_a_frozen_copy_as_the_reference_stays_what_it_is(disk: Path) -> None:
    own = twins(disk, Policy(True), ALL_ON_NVME)
    frozen = twins(disk, copy.deepcopy(own.ours.module).requires_grad_(False).eval(), ALL_ON_NVME)
    before = {name: p.clone() for name, p in frozen.ours.module.named_parameters()}
    references = {id(own.ours): frozen.ours.model, id(own.theirs): frozen.theirs.model}
    for _ in range(4):
        same(own, lambda side: preference_step(side, references[id(side)]))
    assert_moved(own, ALL_ON_NVME, summed=True)
    for name, p in frozen.ours.module.named_parameters():
        assert torch.equal(p, before[name]) and p.grad is None
