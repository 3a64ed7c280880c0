"""Models with matmuls of many forms, trained with these in tiles and, through `aot_eager`, whole."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import gelu, mse_loss

import zcompiler
from tests.right.twins import ALL_ON_NVME, Batch, MakeOptimizer, Trace, stock, train, with_zinf

WIDTH = 64


class Block(torch.nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=bias)
        self.down = torch.nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(gelu(self.up(x)))


class Blocks(torch.nn.Module):
    def __init__(self, layers: int = 2, width: int = WIDTH, bias: bool = True) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(width, bias) for _ in range(layers)])

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return mse_loss(x, labels)


def blocks(**kwargs: Any) -> Blocks:
    torch.manual_seed(1234)
    return Blocks(**kwargs)


def data(count: int = 2, width: int = WIDTH, tokens: int = 5, dtype: torch.dtype = torch.float32) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    shape = (3, tokens, width)
    return [{k: torch.randn(shape, generator=generator).to(dtype) for k in ("x", "labels")} for _ in range(count)]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass
class Run:
    model: Any
    ours: Trace
    theirs: Trace

    @property
    def stats(self) -> zcompiler.Stats:
        return zcompiler.stats(self.model)

    def regions(self) -> list[str]:
        return [region.name for region in zcompiler.schedule(self.model)["graph0"].regions]


def tiled(
    folder: Path,
    module: torch.nn.Module,
    batches: list[Batch],
    tile: dict[str, int],
    optimizer: MakeOptimizer = adamw,
    **options: Any,
) -> Run:
    theirs = train(stock(module), [optimizer], batches)
    model = with_zinf(copy.deepcopy(module), folder, tile=tile, **{"place": ALL_ON_NVME, **options})
    return Run(model, train(model, [optimizer], batches), theirs)


def assert_equal_but_for_rounding(run: Run, relative: float = 1e-5) -> None:
    """Losses and gradients of each step, each gradient as a whole."""
    for step, (own, their) in enumerate(zip(run.ours.losses, run.theirs.losses, strict=True)):
        assert abs(own - their) <= relative * abs(their), f"loss of step {step}: {own} instead of {their}"
    for step, (ours, theirs) in enumerate(zip(run.ours.grads, run.theirs.grads, strict=True)):
        assert ours.keys() == theirs.keys()
        for name, their in theirs.items():
            own = ours[name]
            assert (own is None) == (their is None), name
            if own is not None and their is not None:
                assert (own.dtype, own.shape) == (their.dtype, their.shape), name
                off = ((own - their).double().norm() / their.double().norm().clamp(min=1e-30)).item()
                assert off <= relative, f"gradient of {name} in step {step} is off by {off:.1e}"
