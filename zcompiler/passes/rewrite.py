"""Small steps that several passes take on a schedule's graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch.fx

from zcompiler.schedule.graph import add_op, header, home_placeholder, kind_of, op_nodes, op_of, users_of, value_of
from zcompiler.schedule.model import Op

GATHER_KINDS = ("read", "reload", "all_gather")


class HomeNodes:
    """Which node stands for a value at home, as a pass walks the regions in order: the placeholder, or the last
    write."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[str, torch.fx.Node] = {}

    def node(self, value: str) -> torch.fx.Node:
        return self._nodes.get(value) or home_placeholder(self._graph, value)

    def pass_by(self, nodes: Iterable[torch.fx.Node]) -> None:
        values = header(self._graph).values
        for node in nodes:
            home = values[value_of(node)].home if value_of(node) in values else None
            if home is not None and home == op_of(node).dst:
                self._nodes[value_of(node)] = node


def runs_of(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    return [n for n in nodes if kind_of(n) == "run"]


def operands(run: torch.fx.Node) -> Iterator[tuple[int, str, torch.fx.Node]]:
    """(position, value name, node) of each value a run reads."""
    for position, name in enumerate(op_of(run).reads):
        node = run.args[position]
        assert isinstance(node, torch.fx.Node)
        yield position, name, node


def add_release(
    graph: torch.fx.Graph, after: torch.fx.Node, freed: torch.fx.Node, form: str, tier: str
) -> torch.fx.Node:
    """Free a copy right after `after` (which is to be the last op that uses it), on the same lane."""
    lane = op_of(after).lane
    with graph.inserting_after(last_line(after)):
        return add_op(graph, Op(lane, "release", value_of(freed), form, tier), after.meta["region"], [freed])


def last_line(node: torch.fx.Node) -> torch.fx.Node:
    """The node behind which the line after `node` belongs: a run's `written` nodes stand between."""
    at = node
    while kind_of(at.next) == "written":
        at = at.next
    return at


def past_releases(node: torch.fx.Node) -> torch.fx.Node:
    """The last of the releases that directly follow a node."""
    at = last_line(node)
    while kind_of(at.next) == "release" and at.next.meta["region"] == node.meta["region"]:
        at = at.next
    return at


def last_runs_of_grads(graph: torch.fx.Graph) -> list[tuple[torch.fx.Node, list[tuple[str, torch.fx.Node]]]]:
    """For each run after which gradients are complete: (gradient, its `written` node) of those it writes last.

    A gradient that a later run only reads is complete after that run."""
    values = header(graph).values
    last: dict[str, tuple[torch.fx.Node, torch.fx.Node]] = {}
    for run in runs_of(op_nodes(graph)):
        for name in (*op_of(run).reads, *op_of(run).writes):
            if name in values and values[name].kind == "grad":
                copy = next((u for u in run.users if value_of(u) == name), last[name][1] if name in last else None)
                if copy:
                    last[name] = (run, copy)
    found: dict[torch.fx.Node, list[tuple[str, torch.fx.Node]]] = {}
    for name, (run, copy) in last.items():
        found.setdefault(run, []).append((name, copy))
    return list(found.items())


def releases_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The lines that free the copy a node stands for."""
    return [u for u in users_of(node) if kind_of(u) == "release"]


def issue_order(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    return {n: i for i, n in enumerate(op_nodes(graph))}
