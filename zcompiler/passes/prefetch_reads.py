"""prefetch-reads: issues slow moves before earlier runs, so that they are hidden behind compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.chains import Chain, find_chains
from zcompiler.passes.room import Room
from zcompiler.schedule.graph import op_of, to_schedule


@dataclass(frozen=True)
class PrefetchReads(Pass):
    """Each read and reload goes as far up as it may, to just before the run of an earlier region of the same phase;
    the all_gather it leads to goes up by one region at most.

    A move stays in order on its lane, below the last write of its value and the release of the previous copy; no tier
    goes over its budget at any op it passes; and the values on their way to later regions never exceed `bytes`
    together (each counted as its slow move counts it). Moved lines say which region they are `for`.
    """

    bytes: int

    name: ClassVar[str] = "prefetch-reads"
    after: ClassVar[tuple[str, ...]] = (
        "release-params",
        "reduce-grads",
        "offload-grads",
        "offload-activations",
        "keep-last-unit",
        "keep-reused",
        "trail-writes",
    )

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        slots, chains = find_chains(graph, facts)
        if not chains:
            return
        room = Room(to_schedule(graph, waits=False), facts, slots, self.bytes)
        for chain in chains:
            _move(chain, room.place(chain), slots)


def _move(chain: Chain, targets: list[int | None], slots: list[torch.fx.Node]) -> None:
    """Put each hop at its slot (None: where it is), and with it the release of the form that it makes needless."""
    region = slots[chain.slot].meta["region"]
    freed: torch.fx.Node | None = None
    for hop, target in zip(chain.hops, targets, strict=True):
        if target is not None:
            for node in (hop.node, freed):
                if node is not None:
                    slots[target].prepend(node)
                    node.meta["region"] = slots[target].meta["region"]
                    node.meta["op"] = replace(op_of(node), for_region=region)
        freed = hop.freed_by if hop.freed_by_next else None
