"""Which parameter is which: tied ones, new ones at the address of dead ones, ties made and broken while training."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.cases.both import assert_moved, train, twins
from tests.right.twins import ALL_ON_NVME, with_zinf
from tests.training.pair import Pair, Side, adamw

IDS = [{"ids": torch.randint(0, 24, (2, 5), generator=torch.Generator().manual_seed(i))} for i in range(3)]


class Language(torch.nn.Module):
    """An embedding, a layer and a head of the embedding's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(24, 8)
        self.middle = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 24, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.middle(self.embedding(ids)).tanh())
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def language(tied: bool) -> Language:
    torch.manual_seed(4)
    module = Language()
    if tied:
        module.head.weight = module.embedding.weight
    return module


def restart(own: Pair) -> None:
    for side in own.sides():
        side.optimizer = adamw(side.module.parameters())


def test_a_tied_model_trains_like_in_a_fresh_process_after_thirty_others_have_died(disk: Path) -> None:
    for i in range(30):
        module = torch.nn.Linear(8, 3 + i % 5)
        optimizer = adamw(module.parameters())
        with_zinf(module, disk, place=ALL_ON_NVME)(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    del module, optimizer
    gc.collect()
    own = twins(disk, language(tied=True))
    train(own, IDS)
    assert own.ours.module.head.weight is own.ours.module.embedding.weight
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_a_parameter_at_the_address_of_a_dead_one_is_taken_as_new(disk: Path) -> None:
    own = twins(disk, language(tied=False))
    dead: set[int] = set()
    found = 0
    for i in range(60):
        train(own, IDS[:1])
        for side in own.sides():
            dead.add(id(side.module.middle.weight))
            side.optimizer = adamw([torch.zeros(1, requires_grad=True)])  # lets the old ones go
            del side.module.middle.weight
        value = torch.randn(8, 8, generator=torch.Generator().manual_seed(i))
        tried = [torch.nn.Parameter(value) for _ in range(10_000)]
        new = next((p for p in tried if id(p) in dead), tried[-1])
        own.ours.module.middle.weight = new
        own.theirs.module.middle.weight = copy.deepcopy(new)
        found += id(new) in dead
        del value, tried, new
        restart(own)
        if found == 3:
            break
    assert found == 3, "no address was used anew: the test shows nothing"
    train(own, IDS)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_weights_that_are_tied_and_untied_while_training(disk: Path) -> None:
    own = twins(disk, language(tied=False))
    train(own, IDS)

    def tie(side: Side) -> None:
        side.module.head.weight = side.module.embedding.weight

    def untie(side: Side) -> None:
        side.module.head.weight = copy.deepcopy(side.module.head.weight)

    for change, tied in ((tie, True), (untie, False)):
        own.each(change)
        restart(own)
        train(own, IDS)
        ours = own.ours.module
        assert torch.equal(ours.head.weight, ours.embedding.weight) is tied
        assert (ours.head.weight is ours.embedding.weight) is tied
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def tie_storages(side: Side) -> None:
    side.module.head.weight.data = side.module.embedding.weight.data


def test_weights_that_share_a_storage_from_the_first_stay_together_and_are_reported(disk: Path) -> None:
    own = twins(disk, language(tied=False))
    own.each(tie_storages)
    with pytest.warns(RuntimeWarning, match="another tensor shares its storage"):
        train(own, IDS)
    assert torch.equal(own.ours.module.head.weight, own.ours.module.embedding.weight)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")  # those of the layer between


def test_weights_that_come_to_share_a_storage_while_training_stay_together(disk: Path) -> None:
    own = twins(disk, language(tied=False))
    train(own, IDS)
    own.each(tie_storages)
    with pytest.warns(RuntimeWarning, match="shares its storage"):
        train(own, IDS)
    assert torch.equal(own.ours.module.head.weight, own.ours.module.embedding.weight)
    own.each(lambda side: setattr(side.module.head.weight, "data", side.module.head.weight.data.clone()))
    zcompiler.reset_stats(own.ours.model)
    train(own, IDS)
    assert not torch.equal(own.ours.module.head.weight, own.ours.module.embedding.weight)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_an_instance_whose_weights_share_a_storage_is_served_by_a_graph_of_others(disk: Path) -> None:
    first, second, third = (twins(disk, language(tied=False)) for _ in range(3))
    for own in (first, second):
        train(own, IDS)
    graphs = zcompiler.stats(first.ours.model).graphs
    third.each(tie_storages)
    with pytest.warns(RuntimeWarning, match="shares its storage"):
        train(third, IDS)
    assert zcompiler.stats(first.ours.model).graphs == graphs, "it was compiled anew: the test shows nothing"
    assert torch.equal(third.ours.module.head.weight, third.ours.module.embedding.weight)
    train(first, IDS)
