"""Keeping a gathered parameter from one region to a later one, instead of gathering it twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch.fx

from zcompiler.passes.base import Facts
from zcompiler.passes.rewrite import GATHER_KINDS, releases_of
from zcompiler.schedule.graph import header, kind_of, op_nodes, to_schedule, users_of, value_of
from zcompiler.schedule.memory import memory


def gathered(graph: torch.fx.Graph, nodes: list[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """The copies of parameters that a region gathers for its runs and that are released, there or later."""
    values = header(graph).values
    for node in nodes:
        if kind_of(node) not in GATHER_KINDS or values[value_of(node)].kind != "param":
            continue
        if releases_of(node) and any(kind_of(u) == "run" for u in users_of(node)):
            yield node


def keep(graph: torch.fx.Graph, facts: Facts, kept: torch.fx.Node, copy: torch.fx.Node) -> bool:
    """Let what uses `copy`, a later gather of the same value, use `kept`; whether that was possible.

    It is not if the value changed at home in between, or if the compute tier has no room at some op in between."""
    chain = _chain(copy)
    if _home(kept) is not _home(copy):
        return False
    dropped = [*releases_of(kept), *(r for n in chain if n is not copy for r in releases_of(n)), *chain]
    if not _has_room(graph, facts, dropped, kept.meta["region"], copy.meta["region"]):
        return False
    copy.replace_all_uses_with(kept)
    for node in dropped:
        graph.erase_node(node)
    return True


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


def _home(copy: torch.fx.Node) -> object:
    """What the first gather op of `copy` reads: the value at home, a different node after each write."""
    return _chain(copy)[-1].args[0]


def _has_room(graph: torch.fx.Graph, facts: Facts, dropped: list[torch.fx.Node], first: str, last: str) -> bool:
    budget = next(t.budget for t in facts.tiers if t.compute)
    if budget is None:
        return True
    gone = {i for i, node in enumerate(op_nodes(graph)) if node in set(dropped)}
    schedule = to_schedule(graph, waits=False)
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
