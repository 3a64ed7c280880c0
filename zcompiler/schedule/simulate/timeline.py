"""What a simulation found: when each line ran, what the compute lane waited for, and what was held when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zcompiler.schedule.memory import event_name
from zcompiler.schedule.model import Region
from zcompiler.schedule.simulate.program import FREE, HERE, MOVE, Program


class Wait(NamedTuple):
    """The thread that computes stood still for `seconds` at the line `waiter`, until the line `cause` was done.

    `why`: "use" of what it makes, "room" for an allocation, "lag" of what is released and still in use, "end" of a
    phase, where all transfers are waited for.
    """

    waiter: int
    cause: int
    seconds: float
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Seconds from the program's start. When a line was `issued` (and its memory allocated), its `start` and `end`, by
    its index; a FREE ends when the memory is free. `peak` in bytes by tier, `marks` the ends of phases."""

    program: Program
    issued: Sequence[float]
    start: Sequence[float]
    end: Sequence[float]
    seconds: float
    waits: tuple[Wait, ...]
    marks: tuple[tuple[str, float], ...]
    peak: dict[str, int]

    @property
    def busy(self) -> dict[str, float]:
        """Seconds in which each lane worked."""
        found: dict[str, float] = {}
        for line, start, end in zip(self.program.lines, self.start, self.end, strict=True):
            if line.what in (HERE, MOVE):
                found[line.lane] = found.get(line.lane, 0.0) + end - start
        return found

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that each lane carried."""
        found: dict[str, int] = {}
        for line in self.program.lines:
            if line.what == MOVE:
                found[line.lane] = found.get(line.lane, 0) + line.moved
        return found

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds in which computing waited for each lane, the ends of phases left out."""
        return self._waited(False)

    @property
    def drained(self) -> dict[str, float]:
        """Seconds in which the end of a phase waited for each lane: nobody could compute then."""
        return self._waited(True)

    def hidden(self, lane: str) -> float:
        """Seconds in which the lane worked and nobody waited for it."""
        return max(0.0, self.busy.get(lane, 0.0) - self.exposed.get(lane, 0.0) - self.drained.get(lane, 0.0))

    def _waited(self, at_end: bool) -> dict[str, float]:
        found: dict[str, float] = {}
        for wait in self.waits:
            if (wait.why == "end") == at_end:
                lane = self.program.lines[wait.cause].lane
                found[lane] = found.get(lane, 0.0) + wait.seconds
        return found

    def causes(self) -> list[tuple[str, str, float]]:
        """(lane, event, seconds) of every line that was waited for, the longest first."""
        found: dict[int, float] = {}
        for wait in self.waits:
            found[wait.cause] = found.get(wait.cause, 0.0) + wait.seconds
        lines = self.program.lines
        named = [(lines[i].lane, self.name(i), seconds) for i, seconds in found.items()]
        return sorted(named, key=lambda cause: -cause[2])

    def phases(self) -> Iterator[tuple[str, float]]:
        """Each phase and its seconds, in order."""
        before = 0.0
        for name, at in self.marks:
            yield name, at - before
            before = at

    def name(self, i: int) -> str:
        """The event that a line is, as `read(l0)@fwd/l0`."""
        line = self.program.lines[i]
        return event_name(Region(line.region, ()), line.op) if line.op is not None else line.mark

    def held(self, tier: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(seconds, bytes): from each of these moments on, the tier holds that much. The first is the start."""
        changes: list[tuple[float, float, int]] = [(0.0, -2, self.program.at_rest[tier])]
        for i, line in enumerate(self.program.lines):
            if line.tier != tier or not (line.nbytes or line.work):
                continue
            if line.what == FREE:
                late = self.end[i] > self.start[i]  # what was waited for is free before anything else of that moment
                changes.append((self.end[i], -1 if late else i, -line.nbytes))
            else:
                changes.append((self.issued[i], i, line.nbytes + line.work))
                if line.work:
                    changes.append((self.end[i], i + 0.5, -line.work))
        changes.sort()
        times, _, sizes = zip(*changes, strict=True)
        return np.array(times), np.cumsum(np.array(sizes, dtype=np.int64))
