"""What a step took and moved, phase by phase and lane by lane, as planned and as measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from zcompiler.cli.report.read import Event, Recording, Side
from zcompiler.schedule.words import LANES, phase_of
from zcompiler.training.trace.activity import PHASES, WAITS

OUTSIDE = "outside"
TITLES = {"fwd": "forward", "bwd": "backward", "update": "optimizer step", OUTSIDE: "outside zinf"}
MOVING = tuple(lane for lane in LANES if lane not in ("compute", "update"))


@dataclass(slots=True)
class Cost:
    """Of one phase, a mean over the steps: seconds, seconds in which computing waited, and bytes by lane."""

    seconds: float = 0.0
    exposed: float = 0.0
    moved: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Use:
    """Of one lane, a mean over the steps: seconds in which it worked, seconds in which it was waited for, bytes."""

    busy: float
    exposed: float
    moved: float

    @property
    def rate(self) -> float | None:
        """Bytes a second while it worked."""
        return self.moved / self.busy if self.busy and self.moved else None


def phases(side: Side, steps: int) -> dict[str, Cost]:
    """The costs of each phase of the first `steps` steps, and of what is outside all of them.

    Bytes count for the phase that the line of the schedule belongs to, so those of a late update are the update's. A
    wait counts for the phase in which it was.
    """
    found: dict[str, Cost] = {}
    for step in range(steps):
        spans = side.on(PHASES, step)
        for span in spans:
            found.setdefault(span.name, Cost()).seconds += (span.end - span.begin) / steps
        begin, end = side.steps[step]
        rest = end - begin - sum(e - b for b, e in _union(s for s in spans))
        found.setdefault(OUTSIDE, Cost()).seconds += max(0.0, rest) / steps
        for wait in side.on(WAITS, step):
            inside = [s.name for s in spans if s.begin <= wait.begin < s.end]
            found.setdefault(inside[-1] if inside else OUTSIDE, Cost()).exposed += (wait.end - wait.begin) / steps
        for event in side.events:
            size = event.details.get("bytes", 0)
            if event.step == step and size:
                name = phase_of(event.details["region"]) if "region" in event.details else OUTSIDE
                moved = found.setdefault(name, Cost()).moved
                moved[event.track] = moved.get(event.track, 0.0) + size / steps
    return found


def lanes(side: Side, steps: int) -> dict[str, Use]:
    """The use of each lane in the first `steps` steps."""
    found = {}
    for lane in LANES:
        events = [e for e in side.on(lane) if e.step < steps]
        waits = [e for e in side.on(WAITS) if e.step < steps and e.details["lane"] == lane]
        if events:
            busy = sum(end - begin for begin, end in _union(events))
            exposed = sum(e.end - e.begin for e in waits)
            moved = sum(e.details.get("bytes", 0) for e in events)
            found[lane] = Use(busy / steps, exposed / steps, moved / steps)
    return found


def most_held(side: Side) -> dict[str, int]:
    """The most bytes that each tier held."""
    most: dict[str, int] = {}
    for held in side.held:
        most[held.tier] = max(most.get(held.tier, 0), sum(held.parts.values()))
    return most


def compared(recording: Recording) -> int:
    """How many steps can be laid beside one another."""
    measured = len(recording.measured.steps)
    return measured if recording.planned is None else min(measured, len(recording.planned.steps))


def total(costs: Iterable[Cost]) -> Cost:
    whole = Cost()
    for cost in costs:
        whole.seconds += cost.seconds
        whole.exposed += cost.exposed
        for lane, size in cost.moved.items():
            whole.moved[lane] = whole.moved.get(lane, 0.0) + size
    return whole


def _union(events: Iterable[Event]) -> Sequence[tuple[float, float]]:
    """Intervals that cover the same time and do not overlap."""
    found: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda e: e.begin):
        if found and event.begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], event.end))
        else:
            found.append((event.begin, event.end))
    return found
