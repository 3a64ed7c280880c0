from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import optim

from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_equal, moved
from tests.training.odd import states
from tests.training.pair import Pair, Side, pair

PLACES = {"grads on nvme": ALL_ON_NVME, "grads on host": ON_NVME, "all on host": ON_HOST}


class Sparse(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 6, sparse=True)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids)).square().mean()


def one(side: Side) -> list[optim.Optimizer]:
    return [optim.SGD(side.module.parameters(), lr=0.1, momentum=0.9)]


def two(side: Side) -> list[optim.Optimizer]:
    embedding, head = side.module.embedding, side.module.head
    return [optim.SparseAdam(embedding.parameters(), lr=0.1), optim.AdamW(head.parameters(), lr=1e-2)]


def train(own: Pair, optimizers: tuple[list[optim.Optimizer], list[optim.Optimizer]]) -> None:
    for i in range(3):
        for side, own_ones in zip(own.sides(), optimizers, strict=True):
            for ids in ([i, 2, 3, 2], [3, 7]):  # the gradients of two batches add up
                side.forward({"ids": torch.tensor(ids)}).backward()
            assert side.module.embedding.weight.grad.is_sparse
            for optimizer in own_ones:
                optimizer.step()
        own.same(lambda side: side.module.embedding.weight.grad.to_dense())
        own.same(lambda side: side.module.head.weight.grad)
        own.assert_equal_weights()
        own.each(lambda side: side.module.zero_grad())
    for n in range(len(optimizers[0])):
        for side, own_ones in zip(own.sides(), optimizers, strict=True):
            side.optimizer = own_ones[n]
        assert_equal(*own.each(dense_states), "optimizer's")


def dense_states(side: Side) -> dict[str, object]:
    """SGD keeps the first gradient as its momentum, sparse as that is."""
    found = states(side).items()
    return {k: v.to_dense() if isinstance(v, torch.Tensor) and v.is_sparse else v for k, v in found}


@pytest.mark.parametrize("place", PLACES)
def test_a_sparse_embedding_trains_beside_a_dense_layer(place: str, disk: Path) -> None:
    torch.manual_seed(0)
    own = pair(disk, Sparse(), steps=0, place=PLACES[place])
    for make in (one, two):
        train(own, own.each(make))
    for kind in ("param", "state"):
        assert (min(moved(own.ours.model, kind)) > 0) == (place != "all on host"), kind
    assert (moved(own.ours.model, "grad")[1] > 0) == (place == "grads on nvme")
