"""In which order the next forward will need the parameters, and what it leaves of the limit for an update beside it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence

from zcompiler.plan.beside import UNLIMITED, RegionRoom, room_in_forward
from zcompiler.schedule.model import Schedule
from zcompiler.training.members import Member
from zcompiler.training.resting import Record


class Uses:
    """The training forwards since the last optimizer step: the next ones are taken to be the same."""

    def __init__(self) -> None:
        self._schedules: dict[str, tuple[Schedule, list[RegionRoom]]] = {}
        self._forwards: dict[str, Mapping[str, Sequence[weakref.ref[Record]]]] = {}
        self._parts: set[str] = set()
        self._expected: frozenset[str] = frozenset()
        self._over = False

    def note(
        self, schedule: Schedule, records: Mapping[str, Sequence[weakref.ref[Record]]], parts: Iterable[str] = ()
    ) -> None:
        """A forward begins; `records` are the parameters behind the schedule's values, of which `parts` are rows of one
        parameter."""
        self._parts.update(parts)
        if self._over:
            self._forwards, self._over = {}, False
        known = self._schedules.get(schedule.name)
        if known is None or known[0] is not schedule:
            self._schedules[schedule.name] = schedule, room_in_forward(schedule)
        self._forwards.setdefault(schedule.name, records)

    def expected(self, schedule: Schedule) -> bool:
        """Whether `ahead` has counted on a forward of this schedule."""
        return schedule.name in self._expected

    def ahead(self, members: Iterable[Member]) -> tuple[dict[Record, int], int]:
        """(the place of each member's parameter in the order of use, the bytes that are left for the update's buffers)
        in forwards like those since the last step, which ends with this call.

        A gradient in memory is held until its parameter is updated, which is before the first region that reads it, or
        the last of its rows.
        """
        self._over = True
        self._expected = frozenset(self._forwards)
        place: dict[Record, int] = {}
        whole: dict[Record, int] = {}
        rows: dict[Record, int] = {}
        seen: set[str] = set()
        left: list[int] = []
        for name, records in self._forwards.items():
            for region in self._schedules[name][1]:
                for value in region.values:
                    for look in records.get(value, ()):
                        if (record := look()) is None:
                            continue
                        place.setdefault(record, len(left))
                        if value not in self._parts:
                            whole.setdefault(record, len(left))
                        elif value not in seen:
                            rows[record] = len(left)
                    seen.add(value)
                left.append(region.left)
        order = {m.record: place.get(m.record, len(left)) for m in members}
        waiting = [0] * (len(left) + 1)  # bytes of gradients, by the region before which they go
        for m in members:
            if m.stored_grad is None:
                last = min(whole.get(m.record, len(left)), rows.get(m.record, len(left)))
                waiting[last] += m.p.numel() * m.p.element_size()
        room, held = UNLIMITED if left else 0, sum(waiting)
        for at, bytes_left in enumerate(left):
            held -= waiting[at]
            room = min(room, bytes_left - held)
        return order, room
