"""In which order the next forward will need the parameters: that of the forwards since the last optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence

from zcompiler.plan.beside import Used, room_beside, uses_of
from zcompiler.schedule.model import Schedule
from zcompiler.training.members import Member
from zcompiler.training.resting import Record


class Uses:
    """The training forwards since the last optimizer step: the next ones are taken to be the same."""

    def __init__(self) -> None:
        self._schedules: dict[str, tuple[Schedule, list[Used]]] = {}
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
            self._schedules[schedule.name] = schedule, uses_of(schedule)
        self._forwards.setdefault(schedule.name, records)

    def expected(self, schedule: Schedule) -> bool:
        """Whether `ahead` has counted on a forward of this schedule."""
        return schedule.name in self._expected

    def ahead(self, members: Iterable[Member]) -> tuple[dict[Record, int], int]:
        """(the place of each member's parameter in the order of use, the bytes that are left for the update's buffers)
        in forwards like those since the last step, which ends with this call."""
        self._over = True
        self._expected = frozenset(self._forwards)
        forwards = [
            (self._schedules[name][1], {value: [look() for look in looks] for value, looks in records.items()})
            for name, records in self._forwards.items()
        ]
        waiting = {m.record: m.p.numel() * m.p.element_size() if m.stored_grad is None else 0 for m in members}
        return room_beside(forwards, self._parts, waiting)
