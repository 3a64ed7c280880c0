"""Small models that use torch in the ways in which a compiler may go wrong; each forward gives the loss first."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.right.runs import Program


class Two(nn.Module):
    """Two layers; the others start from it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x).tanh()).square().mean()


class GraphBreaks(Two):
    """Three graphs, of which two use the same weights."""

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x).tanh()
        torch._dynamo.graph_break()
        x = self.second(x) + self.first(x)
        torch._dynamo.graph_break()
        return (x @ self.second.weight).square().mean()


class Reused(Two):
    """Each layer several times in turn."""

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(3):
            x = self.second(self.first(x).tanh())
        return x.square().mean()


class Checkpointed(Two):
    """Layers that are computed again in backward, dropout included."""

    def forward(self, x: torch.Tensor) -> Any:
        for layer in (self.first, self.second):
            x = checkpoint(lambda x, layer=layer: nn.functional.dropout(layer(x).tanh(), 0.4), x, use_reentrant=False)
        return x.square().mean()


class Autocast(Two):
    """Weights that are cast before use."""

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.second(self.first(x).tanh())
        return x.float().square().mean()


class HandsOut(Two):
    """Weights, views of them, inputs and intermediates among the outputs."""

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x).tanh()
        loss = self.second(hidden).square().mean()
        return loss, self.first.weight, self.second.weight.t(), x, hidden, hidden.detach(), 3, None


class ManyTypes(nn.Module):
    """Parameters that are no floats, or do not train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.complex = nn.Parameter(torch.randn(8, dtype=torch.complex64))
        self.whole = nn.Parameter(torch.arange(8), requires_grad=False)
        self.yes = nn.Parameter(torch.tensor([True, False] * 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        return (self.layer(x) * self.complex.abs() + self.whole * self.yes).square().mean()


def convolutions() -> nn.Module:
    """Running statistics, and weights that lie channels last."""
    layers = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.Flatten(), nn.Linear(64, 2)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def parametrized() -> nn.Module:
    """Weights that are computed from others."""
    norm = nn.utils.parametrizations
    return nn.Sequential(norm.weight_norm(nn.Linear(8, 8)), nn.Tanh(), norm.spectral_norm(nn.Linear(8, 4)))


def half() -> nn.Module:
    """Weights and gradients in bfloat16, odd sizes."""
    return nn.Sequential(nn.Linear(8, 131), nn.ReLU(), nn.Linear(131, 3)).bfloat16()


def _inputs(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(*shape, generator=generator) for shape in shapes)


PLAIN = _inputs((4, 8), (4, 8), (4, 8))
PROGRAMS = {
    "batches of any size": Program(Two, _inputs(*((n, 8) for n in (4, 7, 5, 1, 7)))),
    "graph breaks": Program(GraphBreaks, PLAIN),
    "layers used again": Program(Reused, PLAIN),
    "checkpointed layers": Program(Checkpointed, PLAIN),
    "autocast": Program(Autocast, PLAIN),
    "weights among the outputs": Program(HandsOut, PLAIN),
    "many types": Program(ManyTypes, PLAIN),
    "convolutions": Program(
        convolutions, tuple(x.to(memory_format=torch.channels_last) for x in _inputs((4, 3, 8, 8), (4, 3, 8, 8)))
    ),
    "parametrized": Program(parametrized, PLAIN),
    "bfloat16": Program(half, tuple(x.bfloat16() for x in PLAIN)),
}
