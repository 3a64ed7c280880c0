"""Which regions ask the same of a machine: most layers of a deep model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
import torch.fx


def alike(region: torch.fx.GraphModule) -> Hashable:
    """Equal for regions with the same ops on tensors of the same dtypes and shapes: those of what goes in, from which
    those of all the rest follow."""
    number = {node: i for i, node in enumerate(region.graph.nodes)}
    found: list[Hashable] = []
    for node in number:
        given = [_given(argument, number) for argument in (*node.args, *node.kwargs.values())]
        if node.op == "call_function":
            found.append((node.target, *given, *node.kwargs))
        else:
            name = node.target if node.op == "get_attr" else ""  # of the graph inside an op: not in its arguments
            found.append((node.op, name, *given, _form(node.meta.get("val"))))
    return tuple(found)


def _given(argument: object, number: Mapping[torch.fx.Node, int]) -> Hashable:
    if isinstance(argument, torch.fx.Node):
        return "node", number[argument]
    if isinstance(argument, list | tuple):
        return tuple([_given(part, number) for part in argument])
    return argument if isinstance(argument, bool | int | float) else str(argument)


def _form(value: object) -> Hashable:
    if isinstance(value, torch.Tensor):
        shape = tuple(value.shape)
        return value.dtype, shape if all(isinstance(size, int) for size in shape) else str(shape)
    if isinstance(value, tuple | list):
        return tuple([_form(part) for part in value])
    return type(value).__name__
