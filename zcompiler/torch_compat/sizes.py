"""Sizes that may change from call to call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
import torch.fx


def nodes_of_sizes(graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The placeholders of the graph for the symbols in the shapes of `inputs`, but for those that are among these.

    Inductor expects a graph to be given them, as AOTAutograd does: it cannot tell s from a tensor of 2*s rows, and the
    guards of what it has cached are about the sizes that it is given.
    """
    from torch.fx.experimental.symbolic_shapes import free_symbols

    wanted = set()
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes = [size for size in (*value.shape, *value.stride()) if isinstance(size, torch.SymInt)]
            wanted |= {s for size in sizes for s in free_symbols(size)}
    if not wanted:
        return []
    of_size = (n for n in graph.find_nodes(op="placeholder") if isinstance(n.meta.get("val"), torch.SymInt))
    return [n for n in of_size if n.meta["val"].node.expr in wanted and n not in inputs]


def size_hint(size: int | torch.SymInt) -> int:
    """A size as a number: itself, or what it was when the graph was captured."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 1


def size_at(size: torch.SymInt, at: Mapping[str, int]) -> int:
    """A symbolic size with the symbols of `at`, by name, at these values, and others as they were."""
    expression = size.node.expr
    hints = size.node.shape_env.backed_var_to_val
    values = {s: at.get(str(s), hints.get(s)) for s in expression.free_symbols}
    if None in values.values():  # not known before it runs
        return size_hint(size)
    return int(expression.xreplace({s: sympy.Integer(n) for s, n in values.items()}))


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may change from call to call: `what` it is, as Python says it; its number `now`; and `size`, a size
    with it."""

    name: str
    what: str
    now: int
    size: torch.SymInt


def symbols_of(values: Iterable[object]) -> dict[str, Symbol]:
    """The symbols, by name, in the shapes of these values whose numbers are known before a call."""
    found: dict[str, Symbol] = {}
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if not isinstance(size, torch.SymInt):
                continue
            env = size.node.shape_env
            for symbol in sorted(size.node.expr.free_symbols, key=str):
                if (now := env.backed_var_to_val.get(symbol)) is not None and str(symbol) not in found:
                    sources = [source.name for source in env.var_to_sources.get(symbol, ())]
                    found[str(symbol)] = Symbol(str(symbol), (sources or [str(symbol)])[0], int(now), size)
    return found


def guard_at_most(symbol: Symbol, most: int) -> None:
    """Have Dynamo use the graph in compilation only where a symbol is at most that: beyond, it compiles anew."""
    (found,) = (s for s in symbol.size.node.expr.free_symbols if str(s) == symbol.name)
    symbol.size.node.shape_env.evaluate_expr(found <= most)
