"""recompute-activations: marks on a joint graph that make the partitioner compute values again in backward.

Works on aten nodes, before the graph is cut in two, as this decides what forward hands to backward at all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

import torch
import torch.fx

from zcompiler.torch_compat.graphs import is_tangent
from zcompiler.torch_compat.nodes import (
    is_known_and_pure,
    is_random,
    is_view_op,
    never_recompute,
    recompute_in_backward,
)

UnitOf = Callable[[torch.fx.Node], str | None]


def recompute_units(joint: torch.fx.GraphModule, unit_of: UnitOf, wanted: Callable[[str], bool]) -> None:
    """Let backward compute all of the wanted units again, but for what they hand on, which is saved: the input of the
    next unit. Without that, a backward would compute the whole forward again.

    What `may_recompute` refuses, and whatever somebody else has marked (torch.utils.checkpoint), stays as it is.
    """
    unit: dict[torch.fx.Node, str] = {}
    late = _needing_gradients(joint)
    for node in joint.graph.nodes:
        if node.target is operator.getitem and node.args[0] in unit:
            unit[node] = unit[node.args[0]]
        elif node not in late and node.op == "call_function" and (name := unit_of(node)) and wanted(name):
            unit[node] = name
    for node, name in unit.items():
        if any(u.op == "output" or (u not in late and unit.get(u) != name) for u in node.users):
            never_recompute(_maker(node, unit))
    recompute_values(unit)


def recompute_values(nodes: Iterable[torch.fx.Node]) -> None:
    """Let backward compute these forward nodes, given in graph order, again instead of saving them, as far as they may
    be; those that are marked already stay as they are."""
    chosen: set[torch.fx.Node] = set()
    for node in nodes:
        if "recompute" not in node.meta and may_recompute(node, chosen):
            chosen.add(node)
            recompute_in_backward(node)


def may_recompute(node: torch.fx.Node, recomputed: set[torch.fx.Node]) -> bool:
    """Whether a second run of the node gives the same and does nothing else: no random numbers, no writes, no operator
    that torch does not know the inside of. One of several results goes with the others."""
    if node.target is operator.getitem:
        return node.args[0] in recomputed
    made = node.meta.get("val")
    return is_known_and_pure(node) and not is_random(node) and isinstance(made, torch.Tensor | tuple | list)


def _needing_gradients(joint: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The nodes that cannot run before the incoming gradients are there."""
    found: set[torch.fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op == "placeholder" and is_tangent(node) or any(i in found for i in node.all_input_nodes):
            found.add(node)
    return found


def _maker(node: torch.fx.Node, inside: dict[torch.fx.Node, str]) -> torch.fx.Node:
    """The node of the unit that made what this one is a view or a part of: a mark on a view says nothing to the
    partitioner."""
    while node.all_input_nodes and node.all_input_nodes[0] in inside:
        if node.target is not operator.getitem and not is_view_op(node):
            break
        node = node.all_input_nodes[0]
    return node
