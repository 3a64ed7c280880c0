"""Small models whose states do not fit, and a batch for each."""

from __future__ import annotations

import torch
from torch import nn


class Broken(nn.Module):
    """Torch compiles it in two graphs, which share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(self.first(x)))
        torch._dynamo.graph_break()
        return self.second(x).square().mean()


class Deep(nn.Module):
    """Four layers with an embedding before them; forward gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.square().mean()


def tokens() -> tuple[torch.Tensor]:
    return (torch.arange(16).reshape(2, 8),)


def rows() -> tuple[torch.Tensor]:
    return (torch.randn(4, 64),)


def wide() -> nn.Module:
    """Layers of 257 KiB, large enough to be placed one by one."""
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))


def wide_rows() -> tuple[torch.Tensor]:
    return (torch.randn(4, 256),)


class Two(nn.Module):
    """As little as there can be to compile; forward gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x))).square().mean()
