"""Finds the moves that a prefetch may take up, and the places where it may put them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.fx

from zcompiler.passes.base import Facts
from zcompiler.passes.rewrite import GATHER_KINDS, issue_order, releases_of
from zcompiler.schedule.flow import Place, form_bytes
from zcompiler.schedule.graph import header, kind_of, op_nodes, op_of, region_nodes, users_of, value_of
from zcompiler.schedule.words import phase_of

SLOW_KINDS = ("read", "reload")


@dataclass(eq=False)
class Hop:
    """One op of a chain. `index` is its place in issue order, `earliest` the first slot it may go to, `freed_at` the
    issue index of the release of what it makes, if that directly follows the next hop."""

    node: torch.fx.Node
    lane: str
    tier: str
    nbytes: int
    index: int
    earliest: int
    freed_by: torch.fx.Node | None = None
    freed_at: int | None = None

    @property
    def freed_by_next(self) -> bool:
        return self.freed_at is not None


@dataclass(eq=False)
class Chain:
    """The ops that bring one value to where the run before which they stand needs it. `slot` is that run's; moves of
    `fixed` lanes may not pass the slot given there."""

    slot: int
    hops: list[Hop]
    fixed: dict[str, int] = field(default_factory=dict)


def find_chains(graph: torch.fx.Graph, facts: Facts) -> tuple[list[torch.fx.Node], list[Chain]]:
    """(the first run of each region that has one: the slots, just before which a move may be put; the chains that
    start with a slow move, in issue order)."""
    order = issue_order(graph)
    slots = [run for _, nodes in region_nodes(graph) if (run := _first_run(nodes)) is not None]
    slot_after = _slots_after(graph, slots)
    phase_starts = _phase_starts(slots)
    freed_before: dict[Place, int] = {}
    fixed: dict[str, int] = {}
    chains: list[Chain] = []
    taken: set[torch.fx.Node] = set()
    for node in op_nodes(graph):
        kind, at = kind_of(node), order[node]
        if kind == "release":
            place = Place(value_of(node), op_of(node).form, op_of(node).src)
            freed_before[place] = slot_after[at]
        if kind not in GATHER_KINDS or node in taken:
            continue
        slot = slot_after[at]
        ahead = slot < len(slots) and slots[slot].meta["region"] == node.meta["region"]
        if kind in SLOW_KINDS and ahead and not op_of(node).for_region:
            hops = _hops(graph, facts, node, phase_starts[slot], order, slot_after, freed_before)
            chain = Chain(slot, hops, dict(fixed))
            fixed.clear()
            taken.update(h.node for h in chain.hops)
            chains.append(chain)
        else:
            fixed[op_of(node).lane] = slot
    return slots, chains


def _first_run(nodes: list[torch.fx.Node]) -> torch.fx.Node | None:
    return next((n for n in nodes if kind_of(n) == "run"), None)


def _slots_after(graph: torch.fx.Graph, slots: list[torch.fx.Node]) -> list[int]:
    """For each op the first slot behind it."""
    found = []
    slot = 0
    for node in op_nodes(graph):
        if slot < len(slots) and node is slots[slot]:
            slot += 1
        found.append(slot)
    return found


def _phase_starts(slots: list[torch.fx.Node]) -> list[int]:
    """For each slot the first one of the phase that it is in."""
    phases = [phase_of(run.meta["region"]) for run in slots]
    found: list[int] = []
    for i, phase in enumerate(phases):
        found.append(found[-1] if i and phases[i - 1] == phase else i)
    return found


def _hops(
    graph: torch.fx.Graph,
    facts: Facts,
    head: torch.fx.Node,
    earliest: int,
    order: dict[torch.fx.Node, int],
    slot_after: list[int],
    freed_before: dict[Place, int],
) -> list[Hop]:
    slot = slot_after[order[head]]
    values = header(graph).values
    hops: list[Hop] = []
    node: torch.fx.Node | None = head
    while node is not None:
        value = value_of(node)
        gathers = kind_of(node) == "all_gather"
        form = "full" if gathers else header(graph).moved_form(value)
        tier = facts.compute if gathers else op_of(node).dst
        # A write of the value took the copy that was here, so what follows its release follows the write too.
        first = max(earliest, freed_before.get(Place(value, form, tier), 0), slot - 1 if gathers else 0)
        nbytes = form_bytes(values[value], form)
        hops.append(Hop(node, op_of(node).lane, tier, nbytes, order[node], first))
        following = [u for u in users_of(node) if kind_of(u) in GATHER_KINDS and slot_after[order[u]] == slot]
        freed = releases_of(node)
        node = following[0] if len(following) == 1 else None
        if node is not None and len(freed) == 1 and slot_after[order[freed[0]]] == slot:
            hops[-1].freed_by, hops[-1].freed_at = freed[0], order[freed[0]]
    return hops
