"""From the description of a module to the module, and the batches that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tests.properties.described import DTYPES, Described, Layer

VOCABULARY = 11


class Conv(nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Turned(nn.Module):
    """Multiplies by another layer's weight, the other way round."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Scale(nn.Module):
    """A 0-dim parameter; one of no elements."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.75, dtype=dtype))
        self.nothing = nn.Parameter(torch.empty(0, 3, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.nothing.sum().to(x.dtype)


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


class Spare(nn.Module):
    """Has parameters that no forward uses."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 2, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Residual(nn.Module):
    """A branch, and a gate to it whose dtype may be another."""

    def __init__(self, inner: Iterable[nn.Module], gate: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)
        self.gate = nn.Parameter(torch.tensor([0.5], dtype=gate))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate.to(x.dtype) * self.inner(x).to(x.dtype)


class Drawn(nn.Module):
    """The layers in turn, and a loss."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum() / 8


def build(described: Described) -> nn.Module:
    """The module, always with the same weights."""
    torch.manual_seed(0)
    made: dict[int, nn.Module] = {}
    return Drawn([_layer(layer, made) for layer in described.layers])


def batches(described: Described) -> list[torch.Tensor]:
    first = described.layers[0]
    generator = torch.Generator().manual_seed(1)
    if first.kind == "embedding":
        shapes = [(size, described.tokens) for size in described.batches]
        return [torch.randint(0, VOCABULARY, shape, generator=generator) for shape in shapes]
    dtype = DTYPES[first.dtype]
    floats = [torch.randn(n, described.tokens, first.inputs, generator=generator) for n in described.batches]
    return [x.to(dtype).requires_grad_(described.input_grads) for x in floats]


def _layer(layer: Layer, made: dict[int, nn.Module]) -> nn.Module:
    module = made[layer.number] = _new(layer, made)
    if layer.frozen:
        module.requires_grad_(False)
    return module


def _new(layer: Layer, made: dict[int, nn.Module]) -> nn.Module:
    dtype, sizes = DTYPES[layer.dtype], (layer.inputs, layer.outputs)
    other: Any = made[layer.of] if layer.of is not None else None
    match layer.kind:
        case "again":
            return other
        case "embedding":
            return nn.Embedding(VOCABULARY, layer.outputs, dtype=dtype, **(layer.detail or {}))
        case "linear":
            return nn.Linear(*sizes, bias=layer.detail != "no bias", dtype=dtype)
        case "tied":
            tied = nn.Linear(*sizes, dtype=dtype)
            tied.weight = other.weight
            return tied
        case "turned":
            return Turned(other.weight)
        case "conv":
            return Conv(*sizes, kernel_size=layer.detail, padding=layer.detail // 2, dtype=dtype)
        case "norm":
            return nn.LayerNorm(layer.inputs, dtype=dtype)
        case "tanh":
            return nn.Tanh()
        case "dropout":
            return nn.Dropout(layer.detail)
        case "cast":
            return Cast(dtype)
        case "scale":
            return Scale(DTYPES[layer.detail])
        case "spare":
            return Spare(dtype)
        case "residual":
            return Residual([_layer(inner, made) for inner in layer.inner], DTYPES[layer.detail])
    raise ValueError(f"no layer is called {layer.kind}")
