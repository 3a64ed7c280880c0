"""A model whose forward runs under autocast, with weights of all kinds, and twins of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.right.twins import ALL_ON_NVME, MakeOptimizer, with_zinf
from tests.training.pair import Pair, Side, adamw
from zcompiler.training.registry import record_of

VOCABULARY = 24


class Autocasting(nn.Module):
    """An embedding (used as it is and, tied, cast), norms (used as they are), linear layers (cast).

    `low` is the type that autocast casts to, None for no autocast; loss of predicting each token from itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.low: torch.dtype | None = torch.bfloat16
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(64), "up": nn.Linear(64, 128), "down": nn.Linear(128, 64)})
            for _ in range(2)
        )
        self.middle = nn.Linear(64, 64, bias=False)
        self.head = nn.Linear(64, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.low or torch.bfloat16, enabled=self.low is not None):
            hidden = self.embedding(x)
            for layer in self.layers:
                inner = nn.functional.gelu(layer["up"](layer["norm"](hidden)))
                hidden = hidden + layer["down"](inner)
            hidden = self.middle(self.middle(hidden).tanh())
            scores = self.head(hidden).float()
        return nn.functional.cross_entropy(scores.flatten(0, 1), x.flatten())


CAST = ("layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "middle")
DATA = [{"x": torch.randint(0, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(i))} for i in range(6)]


def twins(
    folder: Path, optimizer: MakeOptimizer = adamw, *, steps: int = 2, module: nn.Module | None = None, **options: Any
) -> Pair:
    """One on nvme, the other through `aot_eager` in memory, after the same steps."""
    torch.manual_seed(1)
    module = module if module is not None else Autocasting()
    twin = copy.deepcopy(module)
    ours = with_zinf(module, folder, **{"place": ALL_ON_NVME, **options})
    theirs = torch.compile(twin, backend="aot_eager")
    made = Pair(Side(module, ours, optimizer(module.parameters())), Side(twin, theirs, optimizer(twin.parameters())))
    train(made, steps)
    return made


def train(own: Pair, steps: int = 2) -> None:
    for batch in DATA[:steps]:
        own.same(lambda side, batch=batch: side.step(batch))
    own.assert_equal_weights()


def copied(p: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether the store has a copy of this parameter that counts as up to date."""
    record = record_of(p)
    low = record.unit.low.get(dtype) if record is not None else None
    return record is not None and low is not None and record.slot in low.fresh


def cast_bytes(module: nn.Module, itemsize: int) -> int:
    """Bytes of the cast parameters, each padded to whole pages."""
    parameters = [p for name in CAST for p in module.get_submodule(name).parameters()]
    return sum(-(-p.numel() * itemsize // 4096) * 4096 for p in parameters)
