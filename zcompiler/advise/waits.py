"""Where the time of a step goes: how long computing waits for each lane, for what, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zcompiler.advise.explained import Cause, LaneTime, StepTime
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.program import HERE, MOVE
from zcompiler.schedule.simulate.timeline import Timeline, Wait
from zcompiler.schedule.words import phase_of

_PHASES = {"fwd": "forward", "bwd": "backward", "update": "the update"}
_KINDS = {
    "param": "parameters",
    "grad": "gradients",
    "state": "optimizer states",
    "act": "activations",
    "output": "outputs",
    "input": "inputs",
}
_QUEUED = "its lane is busy with what comes before it"
_LATE = "it is asked for only then, not ahead"
_WHY = {
    "room": "memory is full until this is done",
    "lag": "released memory is still being written",
    "end": "nothing is left to compute in this phase",
}


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A timeline of which the lines from `first` on are looked at, which begin at `begins` seconds."""

    timeline: Timeline
    first: int = 0
    begins: float = 0.0


def last_of(timeline: Timeline, steps: int) -> Part:
    """The last of so many equal steps."""
    if steps == 1:
        return Part(timeline)
    first = len(timeline.program.lines) * (steps - 1) // steps
    begins = timeline.marks[len(timeline.marks) * (steps - 1) // steps - 1][1]
    return Part(timeline, first, begins)


def step_time(
    parts: Sequence[Part], schedules: Iterable[Schedule], machine: str, in_place: float = 0.0, estimated: bool = False
) -> StepTime:
    """The parts of a step one after the other; `schedules` say of which kind each value is."""
    kinds = {value.name: value.kind for schedule in schedules for value in schedule.values}
    phases: list[tuple[str, float]] = []
    busy: defaultdict[str, float] = defaultdict(float)
    moved: defaultdict[str, int] = defaultdict(int)
    peak: dict[str, int] = {}
    waits: list[tuple[Timeline, Wait]] = []
    for part in parts:
        timeline, lines = part.timeline, part.timeline.program.lines
        before = part.begins
        for name, at in timeline.marks:
            if at > before:
                phases.append((name, at - before))
                before = at
        for i in range(part.first, len(lines)):
            if lines[i].what in (HERE, MOVE) and lines[i].lane:
                busy[lines[i].lane] += timeline.end[i] - timeline.start[i]
                if lines[i].what == MOVE:
                    moved[lines[i].lane] += lines[i].moved
        for tier, most in timeline.peak.items():
            peak[tier] = max(peak.get(tier, 0), most)
        waits += [(timeline, wait) for wait in timeline.waits if wait.waiter >= part.first]
    seconds = sum(part.timeline.seconds - part.begins for part in parts) + in_place
    lanes = tuple(_lane(lane, worked, waits, kinds) for lane, worked in busy.items())
    return StepTime(machine, seconds, tuple(phases), in_place, lanes, dict(moved), peak, estimated)


def _lane(lane: str, busy: float, waits: Sequence[tuple[Timeline, Wait]], kinds: Mapping[str, str]) -> LaneTime:
    exposed = at_end = 0.0
    grouped: defaultdict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for timeline, wait in waits:
        if timeline.program.lines[wait.cause].lane != lane:
            continue
        if wait.why == "end":
            at_end += wait.seconds
        else:
            exposed += wait.seconds
        key = _what(timeline, wait, kinds), _why(timeline, wait)
        grouped[key].append((wait.seconds, timeline.name(wait.cause)))
    causes = []
    for (what, why), own in grouped.items():
        most, event = max(own)
        causes.append(Cause(what, why, sum(seconds for seconds, _ in own), len(own), event, most))
    causes.sort(key=lambda cause: -cause.seconds)
    return LaneTime(lane, busy, exposed, at_end, max(0.0, busy - exposed - at_end), tuple(causes))


def _what(timeline: Timeline, wait: Wait, kinds: Mapping[str, str]) -> str:
    waiter, cause = timeline.program.lines[wait.waiter], timeline.program.lines[wait.cause]
    if wait.why == "end":
        where = f"the end of {_PHASES.get(waiter.mark, waiter.mark)}"
    else:
        phase = phase_of(waiter.region)
        where = _PHASES.get(phase, phase)
    if cause.op is None:
        return f"{where} waits"
    return f"{where} waits for the {cause.op.kind} of {_KINDS[kinds[cause.op.value]]}"


def _why(timeline: Timeline, wait: Wait) -> str:
    """A transfer that is used, and not done yet, was asked for too late, or waited for its turn on the lane."""
    if wait.why != "use":
        return _WHY[wait.why]
    waits_since = timeline.end[wait.cause] - wait.seconds
    return _LATE if timeline.issued[wait.cause] >= waits_since * (1 - 1e-9) else _QUEUED
