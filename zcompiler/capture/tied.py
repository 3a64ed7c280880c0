"""The gradient of a weight that is looked up in and projected with: rows are added to the one gradient, not made in
another as large, which is then added.

Sums come out in another order, so this is for graphs whose matmuls or losses are in tiles: that has this effect, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from zcompiler.capture.axes import call

aten = torch.ops.aten
_ZEROS = (aten.full.default, aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)


def add_rows_in_place(graph: torch.fx.Graph) -> None:
    """Turn each sum of a tensor and of rows scattered over zeros into a scatter onto the tensor."""
    for add in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if add.kwargs or not all(isinstance(a, torch.fx.Node) for a in add.args):
            continue
        for rows, other in (add.args, add.args[::-1]):
            if len(rows.users) == 1 and (made := _scattered_onto(graph, add, rows, other)) is not None:
                add.replace_all_uses_with(made)
                for unused in (add, rows, *([rows.args[0]] if _is_zeros(rows.args[0]) else [])):
                    graph.erase_node(unused)
                break


def _scattered_onto(graph: torch.fx.Graph, add: torch.fx.Node, rows: Any, other: Any) -> torch.fx.Node | None:
    """`rows` with `other` in place of the zeros that they are scattered over; None if they are not."""
    if rows.meta["val"].dtype != other.meta["val"].dtype or rows.meta["val"].shape != other.meta["val"].shape:
        return None
    with graph.inserting_before(add):
        if rows.target is aten._unsafe_masked_index_put_accumulate.default and _is_zeros(rows.args[0]):
            return call(graph, rows.target, (other, *rows.args[1:]), {}, rows)
        if rows.target is aten.embedding_dense_backward.default:
            grad, indices, _, padding, by_frequency = rows.args
            if by_frequency:
                return None
            padded = call(graph, aten.eq.Scalar, (indices, padding), {}, rows)
            padded = call(graph, aten.unsqueeze.default, (padded, -1), {}, rows)
            grad = call(graph, aten.masked_fill.Scalar, (grad, padded, 0), {}, rows)
            return call(graph, aten.index_put.default, (other, [indices], grad, True), {}, rows)
    return None


def _is_zeros(node: torch.fx.Node) -> bool:
    if node.target not in _ZEROS or len(node.users) > 1:
        return False
    return node.target is not aten.full.default or bool(node.args[1] == 0)
