"""keep-last-unit: backward begins where forward ended, so the last unit's parameters need not go and come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.keeping import gathered, keep
from zcompiler.schedule.graph import region_nodes, value_of
from zcompiler.schedule.words import phase_of


@dataclass(frozen=True)
class KeepLastUnit(Pass):
    """A parameter that the last forward region to gather any gathers, and the first backward region to gather any
    again, is not released in between and not gathered again, if the compute tier has room for it at every op in
    between; else left alone."""

    name: ClassVar[str] = "keep-last-unit"
    after: ClassVar[tuple[str, ...]] = ("gather-params", "release-params", "offload-activations")
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        gathering = [(r, list(gathered(graph, nodes))) for r, nodes in region_nodes(graph)]
        forward = [copies for r, copies in gathering if phase_of(r) == "fwd" and copies]
        backward = [copies for r, copies in gathering if phase_of(r) == "bwd" and copies]
        if not forward or not backward:
            return
        again = {value_of(copy): copy for copy in backward[0]}
        for kept in forward[-1]:
            copy = again.get(value_of(kept))
            if copy is not None:
                keep(graph, facts, kept, copy)
