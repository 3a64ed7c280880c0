"""What the simulator expects of the steps that were recorded, in the same form as what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zcompiler.machine.machine import Machine
from zcompiler.schedule.simulate.costs import shared_lanes
from zcompiler.schedule.simulate.program import HERE, MOVE, Line
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import with_phases
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.text import op_line
from zcompiler.schedule.words import UPDATE_LANE, phase_of
from zcompiler.training.predicted import Known, predicted, program
from zcompiler.training.trace.activity import PHASES, WAITS, Activity, Group, Sample


@dataclass(frozen=True, slots=True)
class _Cut:
    """Lines `first` to `last` of a timeline, with the phases that they are: in or as step `step`."""

    timeline: Timeline
    first: int
    last: int
    phases: tuple[tuple[str, float, float], ...]  # name, begin, end
    step: int

    @property
    def begin(self) -> float:
        return self.phases[0][1]

    @property
    def end(self) -> float:
        return self.phases[-1][2]


def planned(known: Known, machine: Machine, used: Sequence[Sequence[str]]) -> Group:
    """The steps in which these schedules were used, one after the other, on `machine`.

    A step of one graph and its update is followed as a whole, as it goes when it is not the first: with what the step
    before leaves to it. Of any other each schedule is followed alone, in the order given. Raises ZinfError, LookupError
    or MemoryError for what cannot be simulated.
    """
    cuts = list(_whole(known, machine, len(used)) if _is_whole(known, used) else _alone(known, machine, used))
    activities: list[Activity] = []
    samples: list[Sample] = []
    bounds: dict[int, tuple[float, float]] = {}
    at = 0.0
    for cut in cuts:
        shift = at - cut.begin
        activities += [a.moved(shift) for a in _activities(cut)]
        samples += [replace(s, at=s.at + shift) for s in _samples(cut)]
        begin = bounds[cut.step][0] if cut.step in bounds else at
        at = cut.end + shift
        bounds[cut.step] = (begin, at)
    return Group(tuple(activities), tuple(samples), tuple(bounds.get(i, (at, at)) for i in range(len(used))))


def _is_whole(known: Known, used: Sequence[Sequence[str]]) -> bool:
    """Whether each step is a graph and its update. A late one may have no update to go on with."""
    graphs = {tuple(name for name in names if name != UPDATE_LANE) for names in used}
    updated = UPDATE_LANE in known.schedules and (known.is_late or all(UPDATE_LANE in names for names in used))
    return updated and len(graphs) == 1 and len(graphs.pop()) == 1


def _whole(known: Known, machine: Machine, steps: int) -> Iterator[_Cut]:
    timeline = predicted(known, machine, steps=steps + 1)
    each = len(timeline.program.lines) // (steps + 1)
    phases = _phases(timeline)
    few = len(phases) // (steps + 1)
    for i in range(1, steps + 1):
        yield _Cut(timeline, i * each, (i + 1) * each, phases[i * few : (i + 1) * few], i - 1)


def _alone(known: Known, machine: Machine, used: Sequence[Sequence[str]]) -> Iterator[_Cut]:
    for step, names in enumerate(used):
        for name in names:
            bare = program(known, name, machine)
            timeline = simulate(replace(bare, lines=tuple(with_phases(bare))), shared_lanes(machine))
            yield _Cut(timeline, 0, len(timeline.program.lines), _phases(timeline), step)


def _phases(timeline: Timeline) -> tuple[tuple[str, float, float], ...]:
    marks = timeline.marks
    begins = (0.0, *(at for _, at in marks))
    names = (name if name in ("bwd", UPDATE_LANE) else "fwd" for name, _ in marks)
    return tuple((name, begin, end) for name, begin, (_, end) in zip(names, begins, marks, strict=False))


def _activities(cut: _Cut) -> Iterator[Activity]:
    timeline, graph = cut.timeline, cut.timeline.program.schedule.name
    lines = timeline.program.lines
    for i in range(cut.first, cut.last):
        line = lines[i]
        if line.op is None or line.what not in (HERE, MOVE) or (line.op.kind != "run" and not line.moved):
            continue  # also what a late update hands over: it moves nothing
        details: dict[str, str | int | float] = {"op": " ".join(op_line(line.op).split()), "region": line.region}
        details["schedule"] = _schedule(line, graph)
        details["issued"] = timeline.issued[i]
        if line.moved:
            details["bytes"] = line.moved
        yield Activity(line.lane, timeline.name(i), timeline.start[i], timeline.end[i], cut.step, details)
    for wait in timeline.waits:
        if cut.first <= wait.waiter < cut.last:
            end, cause = timeline.end[wait.cause], timeline.name(wait.cause)
            details = {"lane": lines[wait.cause].lane, "why": wait.why, "event": cause}
            yield Activity(WAITS, f"wait for {cause}", end - wait.seconds, end, cut.step, details)
    for name, begin, end in cut.phases:
        yield Activity(PHASES, name, begin, end, cut.step, {"schedule": UPDATE_LANE if name == UPDATE_LANE else graph})


def _schedule(line: Line, graph: str) -> str:
    return UPDATE_LANE if phase_of(line.region) == UPDATE_LANE else graph


def _samples(cut: _Cut) -> Iterator[Sample]:
    for tier in cut.timeline.program.budgets:
        times, sizes = cut.timeline.held(tier)
        for at, size in zip(times.tolist(), sizes.tolist(), strict=True):
            if cut.begin <= at <= cut.end:
                yield Sample(at, tier, {"held": size}, cut.step)
