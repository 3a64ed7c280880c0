"""A machine described by its rates, on which the Executor runs a schedule in no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from runtime_ext.call import Call, Stored
from runtime_ext.executor import Executor
from runtime_ext.interface import Buffer, Work
from runtime_ext.runtime import Runtime, Statistics
from runtime_ext.virtual.parts import (
    VirtualArena,
    VirtualClock,
    VirtualLane,
    VirtualPeers,
    VirtualStore,
)
from zcompiler.schedule.flow import Flow, Place, form_bytes, moved_form, rest_place
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.words import STORE, UPDATE_LANE


@dataclass(frozen=True, slots=True)
class Span:
    """Something a lane did, from `start` to `end` in seconds, issued in `region`."""

    lane: str
    label: str
    region: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds` until the last compute and the last transfer are done; `peaks` in bytes by tier."""

    seconds: float
    timeline: tuple[Span, ...]
    statistics: Statistics
    peaks: Mapping[str, int]


class VirtualRuntime:
    """Runs a schedule at `rates` (bytes a second by lane); a region computes for `compute_seconds(name)`.

    What rests in memory is there from the start, so the peaks are those that the schedule's text counts. `lag` as for
    `Call`.
    """

    def __init__(
        self,
        schedule: Schedule,
        rates: Mapping[str, float],
        compute_seconds: Callable[[str], float],
        lag: int | None = None,
    ) -> None:
        self.schedule, self.compute_seconds, self.lag = schedule, compute_seconds, lag
        self.clock = VirtualClock()
        self.timeline: list[Span] = []
        budgets = {tier.name: tier.budget for tier in schedule.tiers if tier.name != STORE}
        self.arenas = {tier: VirtualArena(tier, budget) for tier, budget in budgets.items()}
        self.store = VirtualStore(STORE)
        self.runtime = Runtime(
            lanes={name: VirtualLane(name, self.clock, rate, self.trace) for name, rate in rates.items()},
            arenas=self.arenas,
            stores={STORE: self.store},
            peers=VirtualPeers(schedule.rank, schedule.world),
            copy=_copy,
            clock=self.clock,
        )
        self.executor = Executor(self.runtime)

    def trace(self, lane: str, label: str, start: float, end: float) -> None:
        name, region = label.rsplit("@", 1)
        self.timeline.append(Span(lane, name, region, start, end))

    def run(self, regions: Iterable[Region] | None = None) -> Outcome:
        """Run `regions` (all of the schedule) from an empty machine to the end of the last transfer."""
        call = VirtualCall(self)
        self.executor.run(self.schedule.regions if regions is None else regions, call)
        call.close()
        peaks = {tier: arena.peak for tier, arena in self.arenas.items()}
        return Outcome(self.clock.now, tuple(self.timeline), self.executor.statistics(), peaks)


class VirtualCall(Call):
    """Stands in for the lowering: what a region makes is counted, its compute only moves the clock."""

    def __init__(self, machine: VirtualRuntime) -> None:
        super().__init__(machine.executor, machine.schedule, machine.lag)
        self._machine = machine
        self._segments: dict[str, Stored] = {}
        for copy in Flow(self.schedule).live.values():
            if copy.place.tier in machine.arenas and copy.kind != "input":
                self._take(copy.place)

    def segment(self, value: str) -> Stored:
        if value not in self._segments:
            described = self.schedule.value(value)
            size = form_bytes(described, moved_form(self.schedule, described))
            self._segments[value] = self._machine.store.create(value, described.kind, [size])
        return self._segments[value]

    def resting(self, value: str) -> Buffer:
        place = rest_place(self.schedule, self.schedule.value(value))
        if place is None:
            raise LookupError(f"{value} rests nowhere")
        return self._take(place)

    def compute(self, region: str, op: Op) -> None:
        with ExitStack() as temporaries:
            for value in op.writes:
                form = moved_form(self.schedule, self.schedule.value(value)) if op.lane == UPDATE_LANE else "full"
                if self.held(Place(value, form, self.compute_tier)) is None:
                    self.alloc(value, form=form)
            temporaries.enter_context(self.scratch(op.work))
            start = self._machine.clock.now
            self._machine.clock.now += self._machine.compute_seconds(region)
            self._machine.trace(op.lane, f"run({op.value})@{region}", start, self._machine.clock.now)

    def _take(self, place: Place) -> Buffer:
        buffer = self.executor.alloc(place.tier, self.size(place.value, place.form))
        self.hold(place, buffer)
        return buffer


def _copy(label: str, source: np.ndarray, into: np.ndarray) -> Work:
    return Work(label, into.nbytes)
