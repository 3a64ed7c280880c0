"""gather-params: brings each parameter to the compute tier, in full, before the runs that read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.rewrite import HomeNodes, operands, runs_of
from zcompiler.schedule.graph import add_op, header, region_nodes
from zcompiler.schedule.model import Op


@dataclass(frozen=True)
class GatherParams(Pass):
    """In each region, before its first run: the moves from the home and, when partitioned, an all_gather.

    Left alone: parameters that rest in full on the compute tier, and those that the region gathers already."""

    name: ClassVar[str] = "gather-params"
    after: ClassVar[tuple[str, ...]] = ("partition-params",)
    leaves_open: ClassVar[frozenset[str]] = frozenset({"leak", "budget", "made-once"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        homes = HomeNodes(graph)
        for region, nodes in region_nodes(graph):
            runs = runs_of(nodes)
            gathered: dict[str, torch.fx.Node] = {}
            for run in runs:
                for position, name, operand in operands(run):
                    if not self._rests_elsewhere(graph, facts, name) or operand.op != "placeholder":
                        continue
                    if name not in gathered:
                        with graph.inserting_before(runs[0]):
                            gathered[name] = self._gather(graph, facts, region, name, homes.node(name))
                    run.update_arg(position, gathered[name])
            homes.pass_by(nodes)

    def _rests_elsewhere(self, graph: torch.fx.Graph, facts: Facts, name: str) -> bool:
        value = header(graph).values.get(name)
        if value is None or value.kind != "param":
            return False
        home = value.home or facts.compute
        return home != facts.compute or header(graph).moved_form(name) != "full"

    def _gather(
        self, graph: torch.fx.Graph, facts: Facts, region: str, name: str, source: torch.fx.Node
    ) -> torch.fx.Node:
        home = header(graph).values[name].home or facts.compute
        for kind, lane, src, dst in facts.route(home, facts.compute):
            source = add_op(graph, Op(lane, kind, name, "shard", src, dst), region, [source])
        if header(graph).moved_form(name) == "shard":
            source = add_op(graph, Op(facts.comm, "all_gather", name, "shard"), region, [source])
        return source
