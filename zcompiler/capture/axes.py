"""Following one axis of a tensor through views and casts, in both directions, and repeating these over a piece."""

from __future__ import annotations

from typing import Any

import torch.fx

from zcompiler.capture.cut import CASTS, is_parameter_view

_SAME = frozenset({"aten.alias.default", "aten.detach.default", *CASTS})
_RESHAPES = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"})


def axis_below(node: torch.fx.Node, axis: int) -> int | None:
    """Which axis of the node's result its input's `axis` becomes; None if it is none alone, or the node no view."""
    axes = _axes(node)
    return axes.index(axis) if axis in axes else None


def axis_above(node: torch.fx.Node, axis: int) -> int | None:
    """Which axis of the node's input becomes its result's `axis`; None if it is none alone, or the node no view."""
    axes = _axes(node)
    return axes[axis] if axes else None


def is_pure_view(node: torch.fx.Node) -> bool:
    """Whether the node only looks at its input differently: there is nothing to compute."""
    return is_parameter_view(node) and str(node.target) not in CASTS


def again(node: torch.fx.Node, on: torch.fx.Node, axis: int | None = None, length: int = 0) -> torch.fx.Node:
    """The same view or cast of another tensor, whose size along the result's `axis` is `length`."""
    args: list[Any] = [on, *node.args[1:]]
    if axis is not None and str(node.target) in (*_RESHAPES, "aten.expand.default"):
        sizes = list(args[1])
        sizes[axis] = length
        args[1] = sizes
    return call(node.graph, node.target, tuple(args), dict(node.kwargs), node)


def call(
    graph: torch.fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    like: torch.fx.Node,
) -> torch.fx.Node:
    """A new node that belongs where `like` belongs, with the fake tensor that it makes of its inputs' fake tensors."""
    node = graph.call_function(target, args, kwargs)
    node.meta = {k: v for k, v in like.meta.items() if k in ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")}
    values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    with torch.no_grad():
        node.meta["val"] = target(*values[0], **values[1])
    return node


def _axes(node: torch.fx.Node) -> list[int | None]:
    """For each axis of the result, the axis of the input that it is; empty for what is no view."""
    source = node.all_input_nodes[0] if node.all_input_nodes else None
    if not is_parameter_view(node) or source is None:
        return []
    before, after, target = source.meta["val"], node.meta["val"], str(node.target)
    args: Any = node.args
    same: list[int | None] = list(range(before.dim()))
    if target in _SAME:
        return same
    if target == "aten.t.default":
        return same[::-1]
    if target == "aten.permute.default":
        return [same[d] for d in args[1]]
    if target == "aten.transpose.int":
        a, b = args[1], args[2]
        same[a], same[b] = same[b], same[a]
        return same
    if target == "aten.unsqueeze.default":
        same.insert(args[1] % after.dim(), None)
        return same
    if target == "aten.squeeze.dim" and after.dim() < before.dim():
        del same[args[1]]
        return same
    if target == "aten.expand.default":
        new: list[int | None] = [None] * (after.dim() - before.dim())
        return new + [
            d if _equal(before.shape[d], after.shape[d - before.dim()]) else None for d in range(before.dim())
        ]
    if target in _RESHAPES and before.dim() and after.dim():
        # The first and the last axis, where they keep their size.
        kept: list[int | None] = [None] * after.dim()
        if _equal(before.shape[-1], after.shape[-1]):
            kept[-1] = before.dim() - 1
        if _equal(before.shape[0], after.shape[0]):
            kept[0] = 0
        return kept
    return []


def _equal(a: object, b: object) -> bool:
    """Whether two sizes are the same for sure."""
    return isinstance(a, int) and isinstance(b, int) and a == b
