"""A zoo of one small model, and its base written by a process of its own: python -m tests.bench.small_zoo FOLDER"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from bench.zoo.base import write_base
from bench.zoo.described import described
from bench.zoo.models import Kind, limits
from zcompiler.compare.metrics import Side

LAYERS = 6


def _build() -> tuple[torch.nn.Module, Mapping[str, torch.Tensor]]:
    layers = [m for _ in range(LAYERS) for m in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
    with torch.device("meta"):
        model = torch.nn.Sequential(*layers)
    return model, {"input": torch.zeros(128, 256)}


SMALL = (Kind("small", _build, limits("64MiB", "3MiB", "1900KiB")),)
CASES = [("small", limit.name) for limit in SMALL[0].limits]


def sides() -> dict[tuple[str, str], Side]:
    found = dict(described(SMALL))
    return {case: side for case, side in found.items() if isinstance(side, Side)}


if __name__ == "__main__":
    write_base(sides(), Path(sys.argv[1]))
