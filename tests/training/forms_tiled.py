"""Modules that use a weight in a matmul in one way each, and what of it can be tiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu, linear, mse_loss
from torch.utils.checkpoint import checkpoint

from tests.training.tiled import WIDTH

Use = Callable[[Any, torch.Tensor], torch.Tensor]


class Using(torch.nn.Module):
    """One weight, used by a function between two elementwise steps."""

    def __init__(self, use: Use, *shape: int, frozen: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(shape, generator=generator) / 8, requires_grad=not frozen)
        self.bias = torch.nn.Parameter(torch.randn(WIDTH, generator=generator))
        self.gain = torch.nn.Parameter(torch.ones(WIDTH))
        self.use = use

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = self.use(self, gelu(x * self.gain))
        return mse_loss(y.reshape_as(labels) if y.numel() == labels.numel() else y, labels)


def twice(m: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(gelu(linear(x, m.weight)), m.weight)


def siblings(m: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x, m.weight) * linear(x + 1, m.weight)


def again(m: Any, x: torch.Tensor) -> torch.Tensor:
    run = lambda x: gelu(linear(gelu(linear(gelu(x), m.weight)), m.weight.t()))  # noqa: E731
    return checkpoint(run, x, use_reentrant=False)


def left(m: Any, x: torch.Tensor) -> torch.Tensor:
    return (m.weight @ x.reshape(-1, WIDTH).t()).t()


def experts(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, m.weight)


def squared(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x @ (m.weight @ m.weight)


def penalized(m: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x, m.weight) + m.weight.square().mean()


def with_bias(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.addmm(m.bias, x.reshape(-1, WIDTH), m.weight)


def plain(m: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x, m.weight, m.bias)


def products(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bti,oi->bto", x, m.weight)


FORMS: dict[str, tuple[Use, tuple[int, ...]]] = {
    "a linear with a bias": (plain, (WIDTH, WIDTH)),
    "inputs first, as GPT-2 has it": (with_bias, (WIDTH, WIDTH)),
    "on the left": (left, (WIDTH, WIDTH)),
    "of many products": (products, (WIDTH, WIDTH)),
    "of experts": (experts, (3, WIDTH, WIDTH)),
    "used twice": (twice, (WIDTH, WIDTH)),
    "used twice side by side": (siblings, (WIDTH, WIDTH)),
    "computed again": (again, (2 * WIDTH, WIDTH)),
    "multiplied with itself": (squared, (WIDTH, WIDTH)),
    "used whole as well": (penalized, (WIDTH, WIDTH)),
}
