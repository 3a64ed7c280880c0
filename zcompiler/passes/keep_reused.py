"""keep-reused: what a phase needs twice, as tied weights or a layer called twice, is read once where there is room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.keeping import Keeping, gathered
from zcompiler.schedule.graph import region_nodes, value_of
from zcompiler.schedule.words import phase_of


@dataclass(frozen=True)
class KeepReused(Pass):
    """A parameter that two regions of one phase gather is neither released nor gathered again in between, if the
    compute tier has room for it at every op in between; else left alone. The regions that follow closest come first.

    Comes after keep-last-unit, which saves as much and holds a unit for a shorter time."""

    name: ClassVar[str] = "keep-reused"
    after: ClassVar[tuple[str, ...]] = ("gather-params", "release-params", "keep-last-unit")
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        latest: dict[tuple[str, str], tuple[int, torch.fx.Node]] = {}
        pairs: list[tuple[int, torch.fx.Node, torch.fx.Node]] = []
        for at, (region, nodes) in enumerate(region_nodes(graph)):
            for copy in gathered(graph, nodes):
                key = (phase_of(region), value_of(copy))
                if key in latest:
                    before, earlier = latest[key]
                    pairs.append((at - before, earlier, copy))
                latest[key] = (at, copy)
        if not pairs:
            return
        keeping = Keeping(graph, facts)
        stands_for: dict[torch.fx.Node, torch.fx.Node] = {}
        for _, earlier, copy in sorted(pairs, key=lambda pair: pair[0]):
            kept = stands_for.get(earlier, earlier)
            if keeping.keep(kept, copy):
                stands_for[copy] = kept
                stands_for.update({node: kept for node, other in stands_for.items() if other is copy})
