"""`del model` is enough: memory, files and descriptors go, though torch keeps the compiled code."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.right.twins import ALL_ON_NVME, ON_HOST, with_zinf
from tests.training.looks import held_files
from tests.training.pair import adamw
from zcompiler.torch_compat.running import trim_memory

WIDTH = 1024  # 4 MiB a layer in fp32, four times that with its gradient and states


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def anonymous() -> int:
    """Bytes of memory of this process that no file backs, without what its allocator keeps of freed blocks."""
    trim_memory()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def train(disk: Path, place: dict[str, str]) -> list[weakref.ref[Any]]:
    """Train a model, and give what must die with it."""
    module = Layers()
    model = with_zinf(module, disk, place=place)
    optimizer = adamw(module.parameters())
    for _ in range(2):
        model(torch.ones(2, WIDTH)).backward()
        optimizer.step()
    assert bool(held_files(disk)) == (place is ALL_ON_NVME)
    return [weakref.ref(thing) for thing in (module, optimizer, *module.parameters())]


@pytest.mark.parametrize("place", [ALL_ON_NVME, ON_HOST], ids=["on nvme", "in memory"])
def test_a_deleted_model_gives_all_back_without_a_reset_of_torch(place: dict[str, str], disk: Path) -> None:
    train(disk, place)  # what torch and the arena keep once they have it
    gc.collect()
    memory, descriptors = anonymous(), len(os.listdir("/proc/self/fd"))
    after = []
    for _ in range(3):
        dead = train(disk, place)
        gc.collect()
        assert [look() for look in dead] == [None] * len(dead)
        assert held_files(disk) == []
        after.append(anonymous())
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    # A huge page more or less comes and goes.
    assert min(after[1:]) - memory < 8 << 20, "as much as two layers stayed"
