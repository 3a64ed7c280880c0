"""Rows of all sequences in one dimension, as losses and experts want them: of lengths that change, a region sees only a
multiple."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.right.twins import ON_NVME, assert_close, assert_on_nvme, stock, train, with_zinf

CLASSES = 2048


class Flat(torch.nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(CLASSES, width)
        self.middle = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, CLASSES)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids).flatten(0, 1)
        return cross_entropy(self.head(torch.tanh(self.middle(rows))), labels.flatten())


@pytest.mark.parametrize("tile", [{}, {"head": 2}], ids=["whole", "in tiles"])
@pytest.mark.parametrize("compute", ["eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_their_number_may_change_from_call_to_call(compute: str, tile: dict[str, int], disk: Path) -> None:
    torch.manual_seed(1)
    module = Flat()
    batches = []
    for length in (9, 5, 12):
        ids = torch.randint(0, CLASSES, (2, length))
        batches.append({"ids": ids, "labels": ids.roll(1)})
    theirs = train(stock(module), [torch.optim.AdamW], batches)
    model = with_zinf(copy.deepcopy(module), disk, compute=compute, tile=tile, place=ON_NVME)
    assert_close(train(model, [torch.optim.AdamW], batches), theirs, 1e-5)
    assert_on_nvme(model, "param", "state")
