"""keep-last-unit: backward begins where forward ended, so the last unit's parameters need not go and come back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.keeping import Keeping, gathered
from zcompiler.schedule.graph import region_nodes, value_of
from zcompiler.schedule.words import phase_of, tiled_matmul


@dataclass(frozen=True)
class KeepLastUnit(Pass):
    """A parameter that the last forward region to gather any gathers, and the first backward region to gather any
    again, is not released in between and not gathered again, if the compute tier has room for it at every op in
    between; else left alone. The tiles of one matmul count as one region."""

    name: ClassVar[str] = "keep-last-unit"
    after: ClassVar[tuple[str, ...]] = ("gather-params", "release-params", "offload-activations")
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        gathering = [(r, list(gathered(graph, nodes))) for r, nodes in region_nodes(graph)]
        forward = [(r, copies) for r, copies in gathering if phase_of(r) == "fwd" and copies]
        backward = [(r, copies) for r, copies in gathering if phase_of(r) == "bwd" and copies]
        if not forward or not backward:
            return
        again = {value_of(copy): copy for copies in _first(backward) for copy in copies}
        last = [kept for copies in _first(forward[::-1]) for kept in copies if value_of(kept) in again]
        if not last:
            return
        keeping = Keeping(graph, facts)
        for kept in last:
            keeping.keep(kept, again[value_of(kept)])


def _first(regions: list[tuple[str, list[torch.fx.Node]]]) -> list[list[torch.fx.Node]]:
    """What the first of the regions gathers, and the other tiles right behind it."""
    family = tiled_matmul(regions[0][0])
    others = takewhile(lambda region: family is not None and tiled_matmul(region[0]) == family, regions[1:])
    return [copies for _, copies in (regions[0], *others)]
