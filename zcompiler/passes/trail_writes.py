"""trail-writes: the write of an activation goes on behind the next run, instead of being waited for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.rewrite import issue_order, past_releases, runs_of
from zcompiler.schedule.graph import arg_nodes, header, kind_of, op_nodes, op_of, to_schedule, users_of, value_of
from zcompiler.schedule.memory import memory
from zcompiler.schedule.words import phase_of


@dataclass(frozen=True)
class TrailWrites(Pass):
    """The release of an activation behind its write goes down to behind the next run of the same phase, if its tier
    has room for it at every op in between; else left alone. The earlier ones come first."""

    name: ClassVar[str] = "trail-writes"
    after: ClassVar[tuple[str, ...]] = ("offload-activations", "keep-last-unit", "keep-reused")

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        values, order = header(graph).values, issue_order(graph)
        runs = runs_of(op_nodes(graph))
        at = [order[run] for run in runs]
        budgets = {t.name: t.budget for t in facts.tiers}
        held = {tier: during.copy() for tier, during in memory(to_schedule(graph, waits=False)).during.items()}
        ends: dict[torch.fx.Node, torch.fx.Node] = {}  # a run -> the last line moved behind it
        for node in list(order):
            if not _follows_its_write(node) or values[value_of(node)].kind != "act":
                continue
            following = bisect_right(at, order[node])
            run = runs[following] if following < len(runs) else None
            if run is None or phase_of(run.meta["region"]) != phase_of(node.meta["region"]):
                continue
            tier, nbytes = op_of(node).src, values[value_of(node)].nbytes
            span = held[tier][order[node] : order[run] + 1]
            budget = budgets[tier]
            if budget is not None and bool((span + nbytes > budget).any()):
                continue
            span += nbytes
            ends.setdefault(run, past_releases(run)).append(node)
            ends[run] = node
            node.meta["region"] = run.meta["region"]


def _follows_its_write(node: torch.fx.Node) -> bool:
    """Whether a node is a release that stands behind the write of what it frees, with no run in between."""
    if kind_of(node) != "release":
        return False
    (copy,) = arg_nodes(node)[:1]
    at = node.prev
    while kind_of(at) in ("release", "write"):
        if kind_of(at) == "write" and at in users_of(copy):
            return True
        at = at.prev
    return False
