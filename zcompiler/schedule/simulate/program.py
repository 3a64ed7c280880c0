"""A schedule with all names resolved, as the executor would meet them: what the simulator counts through.

The rules are those of `runtime_ext/executor.py`; `tests/schedule/test_simulate.py` runs random schedules through both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zcompiler.schedule.flow import Flow, Place, form_bytes, moved_form
from zcompiler.schedule.memory import counted_tiers
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.words import COMM_KINDS, RUN_LANES

Seconds = Callable[[str, Op], float]

# What a line does. HERE: on the calling thread, which waits for `waits` first. MOVE: on its lane, behind `waits`.
# FREE: gives `nbytes` back once `waits` are done. DRAIN: the calling thread waits for `waits`; nobody computes then.
HERE, MOVE, FREE, DRAIN = range(4)


class Line(NamedTuple):
    """One thing that the executor does. `waits` are earlier lines, by index.

    `nbytes` of `tier` are allocated when it is issued (a FREE gives them back), `work` more while it computes; a MOVE
    carries `moved` bytes and takes `slowing` seconds from what is computed meanwhile. With a `lag` the thread goes on
    after a FREE only when at most so many bytes are released and still in use. `mark` names the moment at which the
    line is through: the end of a phase.
    """

    what: int
    lane: str
    region: str
    op: Op | None
    waits: tuple[int, ...] = ()
    seconds: float = 0.0
    tier: str = ""
    nbytes: int = 0
    work: int = 0
    moved: int = 0
    slowing: float = 0.0
    lag: int | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Lines in issue order; by tier what is held `at_rest` before the first, and the budget."""

    schedule: Schedule
    lines: tuple[Line, ...]
    at_rest: dict[str, int]
    budgets: dict[str, int | None]


def prepare(
    schedule: Schedule, seconds: Seconds, lag: int | None = None, slowing: Mapping[str, float] | None = None
) -> Program:
    """The lines of a schedule, and one that waits for all transfers at the end. O(ops).

    `seconds(region, op)` is asked for each op but releases: what it takes with its lane to itself. `lag`: how many
    bytes may be released and still in use before the next op waits, as for `Call`. `slowing`: by lane, the seconds that
    each byte takes from what is computed meanwhile. LookupError for a wait that names no earlier op.
    """
    flow = Flow(schedule)
    tiers = counted_tiers(schedule)
    at_rest = dict.fromkeys(tiers, 0)
    for copy in flow.live.values():
        if copy.place.tier in at_rest and copy.kind != "input":
            at_rest[copy.place.tier] += copy.nbytes
    names = _Names()
    lines: list[Line] = []
    moves: list[int] = []
    for step in flow.steps():
        op, region = step.op, step.region.name
        after = [names.find(event, step.region, op) for event in op.after]
        if op.kind == "release":
            place, freed = step.frees if step.frees else (Place("", "", ""), None)
            size = freed.nbytes if freed is not None and place.tier in at_rest and freed.kind != "input" else 0
            waits = tuple(dict.fromkeys((*after, *names.unpin(place)))) if size else ()
            lines.append(Line(FREE, op.lane, region, op, waits, tier=op.src, nbytes=size, lag=lag))
            continue
        made = [c for c in step.makes if c.place.tier in at_rest]
        tier = made[0].place.tier if made else schedule.compute_tier.name
        size = sum(c.nbytes for c in made)
        if op.lane in RUN_LANES:
            lines.append(Line(HERE, op.lane, region, op, tuple(after), seconds(region, op), tier, size, op.work))
        else:
            places = [place for place in flow.ends(op) if place.tier in at_rest]
            after += names.earlier(op, len(lines))
            names.pin(places, len(lines))
            moves.append(len(lines))
            carried = moved_bytes(schedule, op)
            timed = (seconds(region, op), tier, size)
            # No more than it takes itself: with nothing beside it, it would else take longer.
            lost = min(timed[0], carried * slowing.get(op.lane, 0.0)) if slowing else 0.0
            lines.append(Line(MOVE, op.lane, region, op, tuple(after), *timed, moved=carried, slowing=lost))
        names.add(step.region, op, len(lines) - 1)
    lines.append(Line(DRAIN, "", "", None, tuple(moves), mark=schedule.name))
    return Program(schedule, tuple(lines), at_rest, {t.name: t.budget for t in schedule.tiers if t.name in at_rest})


def moved_bytes(schedule: Schedule, op: Op) -> int:
    """Bytes that an op other than a run or a release carries on its lane."""
    value = schedule.value(op.value)
    if op.kind in COMM_KINDS:
        return form_bytes(value, "full") - form_bytes(value, "shard")
    return form_bytes(value, moved_form(schedule, value))


def shifted(lines: Iterable[Line], by: int) -> list[Line]:
    """The lines as they stand `by` places further down."""
    return [line._replace(waits=tuple(w + by for w in line.waits)) if line.waits else line for line in lines]


class _Names:
    """Events by name, transfers that use a buffer, and the order that transfers of a value keep."""

    def __init__(self) -> None:
        self._events: dict[str, int] = {}
        self._pins: dict[Place, list[int]] = {}
        self._last_write: dict[str, int] = {}
        self._reads_since: dict[str, list[int]] = {}

    def add(self, region: Region, op: Op, index: int) -> None:
        name = f"{op.kind}({op.value})"
        self._events[name] = self._events[f"{name}@{region.name}"] = index

    def find(self, event: str, region: Region, op: Op) -> int:
        found = self._events.get(f"{event}@{region.name}", self._events.get(event))
        if found is None:
            raise LookupError(f"{region.name}: {op.kind}({op.value}) waits for {event}, which is no earlier op")
        return found

    def pin(self, places: Iterable[Place], index: int) -> None:
        for place in places:
            self._pins.setdefault(place, []).append(index)

    def unpin(self, place: Place) -> list[int]:
        return self._pins.pop(place, [])

    def earlier(self, op: Op, index: int) -> list[int]:
        """What a transfer from or to the store must not overtake: of one value, a write anything, a read the write."""
        if op.kind not in ("read", "write"):
            return []
        found = [self._last_write[op.value]] if op.value in self._last_write else []
        if op.kind == "read":
            self._reads_since.setdefault(op.value, []).append(index)
        else:
            found += self._reads_since.pop(op.value, [])
            self._last_write[op.value] = index
        return found
