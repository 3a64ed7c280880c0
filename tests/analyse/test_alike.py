"""Regions are alike if they ask the same of a machine, whatever their nodes are called."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from zcompiler.analyse.alike import alike

X = torch.zeros(2, 4, 6)


def form(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Hashable:
    return alike(make_fx(function, tracing_mode="fake")(*inputs))


def convolved(x: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.nn.functional.conv1d(x, x.new_ones(4, 4 // groups, 1), groups=groups)


def test_names_do_not_matter() -> None:
    assert form(lambda a, b: torch.cat([a, b.exp()]), X, X) == form(lambda u, w: torch.cat([u, w.exp()]), X, X)


def test_ops_operands_their_order_shapes_and_types_do() -> None:
    forms = [
        form(lambda a, b: a.exp() + b, X, X),
        form(lambda a, b: a + b.exp(), X, X),
        form(lambda a, b: a.sin() + b, X, X),
        form(lambda a, b: a.exp() + b, X[:1], X[:1]),
        form(lambda a, b: a.exp() + b, X.double(), X.double()),
        form(lambda a: convolved(a, 1), X),
        form(lambda a: convolved(a, 2), X),
    ]
    assert len(set(forms)) == len(forms)
