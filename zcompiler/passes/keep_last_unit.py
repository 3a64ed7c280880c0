"""keep-last-unit: backward begins where forward ended, so the last unit's parameters need not go and come back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, takewhile
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
        # Tiles by tokens gather the same parameter, each its own copy: the one nearest to the turn is kept.
        again: dict[str, torch.fx.Node] = {}
        for copy in chain.from_iterable(_first(backward)):
            again.setdefault(value_of(copy), copy)
        last: dict[str, torch.fx.Node] = {}
        for copies in _first(forward[::-1]):
            for value, copy in {value_of(copy): copy for copy in copies}.items():
                last.setdefault(value, copy)
        kept = [(copy, again[value]) for value, copy in last.items() if value in again]
        if not kept:
            return
        keeping = Keeping(graph, facts)
        for copy, later in kept:
            keeping.keep(copy, later)


def _first(regions: list[tuple[str, list[torch.fx.Node]]]) -> list[list[torch.fx.Node]]:
    """What the first of the regions gathers, and the other tiles right behind it."""
    family = tiled_matmul(regions[0][0])
    others = takewhile(lambda region: family is not None and tiled_matmul(region[0]) == family, regions[1:])
    return [copies for _, copies in (regions[0], *others)]
