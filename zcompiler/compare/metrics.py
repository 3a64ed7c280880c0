"""What schedules cost, as whole numbers that are the same wherever they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zcompiler.compare.times import has_lanes, reference_machines, timeline
from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.program import moved_bytes
from zcompiler.schedule.verify import verify
from zcompiler.schedule.words import RUN_LANES

NANOSECONDS = 10**9
THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Side:
    """One of two things to compare: the schedules of a step by name (graphs, and the update), as `zcompiler.schedule`
    gives them. `compiled`: how many distinct regions are compiled, which a schedule does not say (None: unknown).
    `works`: what each run asks of a machine, by schedule and the name of what runs; empty where only the text is known.
    `measured`: ratios, in thousandths, that a run of the step gave, by name; empty where it was not run.
    """

    schedules: Mapping[str, Schedule]
    compiled: int | None = None
    works: Mapping[str, Mapping[str, Work]] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)


class Metric(NamedTuple):
    """What a number counts. `schedule` is empty for the whole step.

    kind     of             number
    bytes    a lane         bytes it carries in a step
    peak     a tier         the most bytes a schedule holds there at once
    counts   graphs (updates are none), regions, runs, compiled
    exposed  a machine      nanoseconds of a step in which computing waits for transfers, the end of each schedule
                            included
    step     a machine      nanoseconds of a step
    measured a ratio        thousandths of it
    """

    kind: str
    of: str
    schedule: str = ""

    def __str__(self) -> str:
        if self.kind == "counts":
            return {"compiled": "compiled regions"}.get(self.of, self.of)
        name = {"bytes": self.of, "step": f"step on {self.of}"}.get(self.kind, f"{self.kind} {self.of}")
        name = f"exposed on {self.of}" if self.kind == "exposed" else name
        return f"{name} ({self.schedule})" if self.schedule else name


def phases(schedule: Schedule) -> frozenset[str]:
    """Which phases a schedule has: fwd, bwd, update."""
    return frozenset(region.phase for region in schedule.regions)


def updates_only(schedule: Schedule) -> bool:
    """Whether this is the schedule of an optimizer step."""
    return phases(schedule) == {"update"}


def measure(side: Side, machines: Iterable[Machine] | None = None) -> dict[Metric, int]:
    """All metrics of a step. O(ops), and a simulation for each of the machines (None: the reference ones).

    There are no times where a schedule breaks a rule, and none on a machine that lacks a lane.
    """
    schedules = side.schedules
    found: Counter[Metric] = Counter()
    peaks: dict[Metric, int] = {}
    found[Metric("counts", "graphs")] = sum(not updates_only(schedule) for schedule in schedules.values())
    for name, schedule in schedules.items():
        found[Metric("counts", "regions")] += len(schedule.regions)
        for _, op in schedule.ops():
            if op.kind == "run":
                found[Metric("counts", "runs")] += 1
            elif op.kind != "release" and op.lane not in RUN_LANES:
                found[Metric("bytes", op.lane)] += moved_bytes(schedule, op)
        for tier, (most, _) in peak(schedule).items():
            peaks[Metric("peak", tier, name)] = most
    if side.compiled is not None:
        found[Metric("counts", "compiled")] = side.compiled
    ratios = {Metric("measured", name): number for name, number in side.measured.items()}
    times = {} if any(map(verify, schedules.values())) else _times(side, machines)
    return dict(found) | peaks | times | ratios


def _times(side: Side, machines: Iterable[Machine] | None) -> dict[Metric, int]:
    found: dict[Metric, int] = {}
    schedules = side.schedules
    for machine in reference_machines() if machines is None else machines:
        if all(has_lanes(machine, schedule) for schedule in schedules.values()):
            lines = [timeline(s, machine, side.works.get(name, {})) for name, s in schedules.items()]
            waited = sum(wait.seconds for one in lines for wait in one.waits)
            found[Metric("exposed", machine.name)] = round(waited * NANOSECONDS)
            found[Metric("step", machine.name)] = round(sum(one.seconds for one in lines) * NANOSECONDS)
    return found
