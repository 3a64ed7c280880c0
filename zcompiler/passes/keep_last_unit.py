"""keep-last-unit: backward begins where forward ended, so the last unit's parameters need not go and come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.rewrite import GATHER_KINDS, releases_of
from zcompiler.schedule.graph import header, kind_of, op_nodes, region_nodes, to_schedule, users_of, value_of
from zcompiler.schedule.memory import memory
from zcompiler.schedule.words import phase_of


@dataclass(frozen=True)
class KeepLastUnit(Pass):
    """A parameter that the last forward region to gather any gathers, and the first backward region to gather any
    again, is not released in between and not gathered again, if the compute tier has room for it at every op in
    between; else left alone."""

    name: ClassVar[str] = "keep-last-unit"
    after: ClassVar[tuple[str, ...]] = ("gather-params", "release-params")
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        gathering = [(r, list(_gathered(graph, nodes))) for r, nodes in region_nodes(graph)]
        forward = [(r, copies) for r, copies in gathering if phase_of(r) == "fwd" and copies]
        backward = [(r, copies) for r, copies in gathering if phase_of(r) == "bwd" and copies]
        if not forward or not backward:
            return
        (last, before), (first, after) = forward[-1], backward[0]
        again = {value_of(copy): copy for copy in after}
        for kept in before:
            copy = again.get(value_of(kept))
            if copy is None:
                continue
            released = releases_of(kept)
            chain = _chain(copy)
            dropped = [*released, *(r for n in chain if n is not copy for r in releases_of(n)), *chain]
            if _has_room(graph, facts, dropped, last, first):
                copy.replace_all_uses_with(kept)
                for node in dropped:
                    graph.erase_node(node)


def _gathered(graph: torch.fx.Graph, nodes: list[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """The copies of parameters that a region's runs read and that the region itself gathers and releases."""
    values = header(graph).values
    for node in nodes:
        if kind_of(node) in GATHER_KINDS and values[value_of(node)].kind == "param":
            region = node.meta["region"]
            used = any(kind_of(u) == "run" for u in users_of(node))
            if used and releases_of(node) and all(u.meta["region"] == region for u in users_of(node)):
                yield node


def _chain(copy: torch.fx.Node) -> list[torch.fx.Node]:
    """The gather ops that end in `copy`, last first."""
    chain = []
    at = copy
    while kind_of(at) in GATHER_KINDS:
        chain.append(at)
        source = at.args[0]
        assert isinstance(source, torch.fx.Node)
        at = source
    return chain


def _has_room(graph: torch.fx.Graph, facts: Facts, dropped: list[torch.fx.Node], first: str, last: str) -> bool:
    budget = next(t.budget for t in facts.tiers if t.compute)
    if budget is None:
        return True
    gone = {i for i, node in enumerate(op_nodes(graph)) if node in set(dropped)}
    schedule = to_schedule(graph)
    regions = []
    at = count = start = end = 0
    for region in schedule.regions:
        ops = tuple(op for i, op in enumerate(region.ops, at) if i not in gone)
        at += len(region.ops)
        if region.name == first:
            start = count
        count += len(ops)
        if region.name == last:
            end = count
        regions.append(replace(region, ops=ops))
    # All regions, though only some are looked at: what a later one makes must not count as there from the start.
    during = memory(replace(schedule, regions=tuple(regions))).during[facts.compute]
    return bool((during[start:end] <= budget).all())
