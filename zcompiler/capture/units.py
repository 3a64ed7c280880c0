"""Which unit a parameter or a node belongs to.

A unit is what is gathered together: an element of a numbered container (a layer), or a module that owns parameters
directly (an embedding). A node that belongs to no unit joins the region of its latest input.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.fx

from zcompiler.capture.names import clean, split_path


def unit_of_parameter(path: tuple[str, ...]) -> str:
    """The unit of a parameter at module path `path` (the parameter's own name last)."""
    for i, step in enumerate(path[:-1]):
        if step.isdigit():
            return ".".join(path[: i + 1])
    return ".".join(path[:-1] or path)


def unit_of_node(node: torch.fx.Node, units: frozenset[str]) -> str | None:
    """The unit whose module made this node, or None. `units` are those that own parameters, by their clean names."""
    for prefix in _prefixes(_module_path(node)):
        if prefix in units:
            return prefix
    return None


def _module_path(node: torch.fx.Node) -> tuple[str, ...]:
    # True backward nodes carry the stack of the forward node they differentiate; recomputed ones keep their own.
    stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")
    if not stack:
        return ()
    # Dynamo marks a module's second call in a trace as `name@1`.
    steps = (clean(step.split("@")[0]) for step in split_path(list(stack.values())[-1][0])[1])
    return tuple(step for step in steps if step)


def _prefixes(path: tuple[str, ...]) -> Iterable[str]:
    """From the longest to the shortest: a layer before the encoder that holds it."""
    for i in range(len(path), 0, -1):
        yield ".".join(path[:i])
