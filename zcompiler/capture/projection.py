"""Finds in Dynamo's graph the projection that made some logits, and says it again for the tokens of a loss."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

_MATMULS = frozenset({operator.matmul, torch.matmul, torch.mm, "matmul", "mm"})
_TURNS = frozenset({(getattr, "T"), (getattr, "mT"), ("t",), (torch.t,)})
_CASTS = frozenset({"to", "float", "double", "contiguous"})
_RESHAPES = frozenset({"view", "reshape", torch.reshape})
_FLATTENS = frozenset({"flatten", torch.flatten})


@dataclass(frozen=True, slots=True)
class Projection:
    """`node` projects `x` by `weight` [classes, hidden] and `bias`; `chain` is what its result goes through, in order,
    and `other` what of that does more than leave the classes alone."""

    node: torch.fx.Node
    x: torch.fx.Node
    weight: torch.fx.Node
    bias: torch.fx.Node | None
    chain: tuple[torch.fx.Node, ...]
    other: tuple[torch.fx.Node, ...]


def projection_of(node: Any) -> Projection | None:
    """What makes these logits, if a linear or a matmul with a transposed matrix does."""
    chain: list[torch.fx.Node] = []
    while isinstance(node, torch.fx.Node) and node.op in ("call_function", "call_method"):
        if node.target is F.linear or node.target in _MATMULS:
            x, weight, bias = _operands(node)
            if not isinstance(weight, torch.fx.Node) or value_of(weight).dim() != 2:
                return None
            return Projection(node, x, weight, bias, tuple(reversed(chain)), tuple(n for n in chain if not _keeps(n)))
        chain.append(node)
        node = node.args[0] if node.args else None
    return None


def rows_of(graph: torch.fx.Graph, x: torch.fx.Node, found: Projection) -> torch.fx.Node:
    """`x` after what its projection goes through: a row for each row of logits."""
    classes, hidden = value_of(found.weight).shape
    for node in found.chain:
        if node.target is operator.getitem:
            x = graph.call_function(operator.getitem, (x, node.args[1]))
        elif node.target in _FLATTENS:
            x = graph.call_method("flatten", (x, *node.args[1:]))
        elif node.target in _RESHAPES:
            sizes: Any = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
            x = graph.call_method("reshape", (x, *sizes[:-1], hidden if sizes[-1] == classes else sizes[-1]))
    return x


def value_of(node: Any) -> Any:
    """The fake tensor of a node of Dynamo's graph, None for what has none."""
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _operands(node: torch.fx.Node) -> tuple[Any, Any, Any]:
    if node.target is F.linear:
        given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
        return given["input"], given["weight"], given.get("bias")
    turned: Any = node.args[1] if len(node.args) == 2 else None
    if not isinstance(turned, torch.fx.Node):
        return None, None, None
    how = (turned.target, *turned.args[1:])
    swapped = turned.target in ("transpose", torch.transpose) and set(turned.args[1:]) in ({0, 1}, {-1, -2})
    return (node.args[0], turned.args[0], None) if how in _TURNS or swapped else (None, None, None)


def _keeps(node: torch.fx.Node) -> bool:
    """Whether the node leaves the last axis as it is, and treats all along it alike."""
    before, after = value_of(node.args[0]), value_of(node)
    if not (isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and before.dim() and after.dim()):
        return False
    if before.shape[-1] != after.shape[-1] or before.device != after.device:
        return False
    if node.target in _RESHAPES:
        return not node.kwargs and before.dtype == after.dtype
    if node.target in _FLATTENS:
        return not node.kwargs
    return node.target in _CASTS or (node.target is operator.getitem and _leaves_last(node.args[1], before.dim()))


def _leaves_last(index: Any, dims: int) -> bool:
    steps = list(index) if isinstance(index, tuple) else [index]
    if not all(step is Ellipsis or isinstance(step, slice) for step in steps):
        return False
    if Ellipsis in steps:
        return (steps[-1] is Ellipsis and len(steps) <= dims) or steps[-1] == slice(None)
    return len(steps) < dims or steps[-1] == slice(None)
