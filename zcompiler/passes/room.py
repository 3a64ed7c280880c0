"""Where each hop of a chain fits: bytes held at every op and slot, kept up to date as chains move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.fx

from zcompiler.passes.base import Facts
from zcompiler.passes.chains import Chain, Hop
from zcompiler.schedule.memory import memory
from zcompiler.schedule.model import Schedule

_UNLIMITED = 1 << 62


class Room:
    """The points of a schedule in issue order: every op, and before each slot's run one more point for what is put
    there. `_free` has the bytes left on each tier at each point, `_ahead` those on their way to later slots."""

    def __init__(self, schedule: Schedule, facts: Facts, slots: Sequence[torch.fx.Node], most_ahead: int) -> None:
        ops = [op for _, op in schedule.ops()]
        regions = [region.name for region, _ in schedule.ops()]
        firsts: dict[str, int] = {}
        for i, op in enumerate(ops):
            if op.kind == "run":
                firsts.setdefault(regions[i], i)
        runs = np.array([firsts[slot.meta["region"]] for slot in slots], dtype=np.int64)
        self._slot_points = runs + np.arange(len(runs))
        self._op_points = np.arange(len(ops)) + np.searchsorted(runs, np.arange(len(ops)), side="right")
        used = memory(schedule)
        self._free = {}
        for tier in facts.tiers:
            if tier.name not in used.start:
                continue
            limit = _UNLIMITED if tier.budget is None else tier.budget
            points = np.empty(len(ops) + len(runs), dtype=np.int64)
            points[self._op_points] = used.during[tier.name]
            before = np.concatenate(([used.start[tier.name]], used.after[tier.name]))
            points[self._slot_points] = before[runs]
            self._free[tier.name] = limit - points
        self._most_ahead = most_ahead
        self._ahead = np.zeros(len(runs), dtype=np.int64)
        self._lane_floor: dict[str, int] = {}

    def place(self, chain: Chain) -> list[int | None]:
        """The slot for each hop (None: it stays), as early as everything allows; the room they take is taken."""
        for lane, slot in chain.fixed.items():
            self._lane_floor[lane] = max(slot, self._lane_floor.get(lane, 0))
        nbytes = chain.hops[0].nbytes
        full = np.flatnonzero(self._ahead[: chain.slot] + nbytes > self._most_ahead)
        floor = int(full[-1]) + 1 if len(full) else 0
        targets = self._fit(chain, len(chain.hops) - 1, None, floor)
        assert targets is not None  # staying is always possible
        for hop, target in zip(chain.hops, targets, strict=True):
            self._lane_floor[hop.lane] = chain.slot if target is None else target
        if targets[0] is not None:
            self._ahead[targets[0] : chain.slot] += nbytes
        return targets

    def _fit(self, chain: Chain, h: int, following: int | None, floor: int) -> list[int | None] | None:
        """Slots for the hops up to `h` when the next one goes to slot `following` (None: it stays, or `h` is last)."""
        if h < 0:
            return []
        hop = chain.hops[h]
        lifted = following is not None and hop.freed_at is not None
        if lifted:
            self._take(hop, self._whole_life(hop), -1)
            end = int(self._slot_points[following]) + 1
        else:
            end = int(self._op_points[hop.index])
        latest = chain.slot - 1 if following is None else following
        for slot in self._candidates(hop, floor, latest, end):
            span = slice(int(self._slot_points[slot]), end)
            self._take(hop, span, 1)
            rest = self._fit(chain, h - 1, slot, floor)
            if rest is not None:
                return [*rest, slot]
            self._take(hop, span, -1)
        if lifted:
            self._take(hop, self._whole_life(hop), 1)
        if following is not None:
            return None
        rest = self._fit(chain, h - 1, None, floor)
        return None if rest is None else [*rest, None]

    def _candidates(self, hop: Hop, floor: int, latest: int, end: int) -> range:
        """The slots at which the hop's bytes have room until point `end`."""
        first = max(floor, hop.earliest, self._lane_floor.get(hop.lane, 0))
        if first > latest:
            return range(0)
        start = int(self._slot_points[first])
        full = np.flatnonzero(self._free[hop.tier][start:end] < hop.nbytes)
        if len(full):
            first = int(np.searchsorted(self._slot_points, start + int(full[-1]), side="right"))
        return range(first, latest + 1)

    def _whole_life(self, hop: Hop) -> slice:
        assert hop.freed_at is not None
        return slice(int(self._op_points[hop.index]), int(self._op_points[hop.freed_at]))

    def _take(self, hop: Hop, span: slice, sign: int) -> None:
        self._free[hop.tier][span] -= sign * hop.nbytes
