"""Which nodes of a graph look into one storage: saving two of them holds it once, and it goes when both have gone."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch.fx

from zcompiler.torch_compat.nodes import is_view_op

# Says nothing of it in its schema, but gives back its input's storage.
_UNSAID = frozenset({"aten._unsafe_view.default"})


def storage_roots(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """For each view, the node that made its storage (a placeholder, or an op that is no view); others are left out.

    What a compiler makes of the graph may copy where this says alias, so it is for counting, never for correctness.
    """
    roots: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        if node.op == "call_function" and node.all_input_nodes and _looks_into_its_input(node, roots):
            base = node.all_input_nodes[0]
            roots[node] = roots.get(base, base)
    return roots


def _looks_into_its_input(node: torch.fx.Node, roots: dict[torch.fx.Node, torch.fx.Node]) -> bool:
    if node.target is operator.getitem:
        return node.args[0] in roots  # one of several views, as of a split
    return is_view_op(node) or str(node.target) in _UNSAID
