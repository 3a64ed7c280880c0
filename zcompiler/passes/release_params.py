"""release-params: frees each copy of a parameter as soon as nothing in its region uses it any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.rewrite import GATHER_KINDS, add_release, issue_order, releases_of
from zcompiler.schedule.graph import header, kind_of, op_nodes, op_of, users_of, value_of


@dataclass(frozen=True)
class ReleaseParams(Pass):
    """After each op that makes the next form: a release of the form it came from. After the last run of the region
    that reads a gathered parameter: a release of the full form. Copies that are released already are left alone."""

    name: ClassVar[str] = "release-params"
    after: ClassVar[tuple[str, ...]] = ("gather-params",)
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        order = issue_order(graph)
        values = header(graph).values
        last_of: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for node in op_nodes(graph):
            value = values.get(value_of(node))
            if kind_of(node) not in GATHER_KINDS or value is None or value.kind != "param" or releases_of(node):
                continue
            users = [u for u in users_of(node) if u.meta["region"] == node.meta["region"]]
            last = max(users, key=order.__getitem__, default=node)
            last_of.setdefault(last, []).append(node)
        for last, freed in last_of.items():
            for node in reversed(freed):  # each goes right behind `last`, so the first to be made comes first
                self._release(graph, facts, last, node)

    def _release(self, graph: torch.fx.Graph, facts: Facts, last: torch.fx.Node, freed: torch.fx.Node) -> None:
        gathered = kind_of(freed) == "all_gather"
        form = "full" if gathered else header(graph).moved_form(value_of(freed))
        tier = facts.compute if gathered else op_of(freed).dst
        add_release(graph, last, freed, form, tier)
