"""The canonical `after` of each op: the ops on other lanes that made what it uses, in issue order.

A release waits for the users of what it frees; an op that overwrites waits for those that read the old bytes.
Ops of the same lane are in order anyway and are not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zcompiler.schedule.flow import Flow
from zcompiler.schedule.memory import event_name
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.text import parse_event


class Events:
    """Event names and ops, met in issue order. In a wait a name means the latest earlier op of that name."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}

    def add(self, index: int, region: Region, op: Op) -> None:
        self._latest[event_name(region, op)] = index

    def find(self, event: str, region: Region) -> int | None:
        """The issue index of the op that `event` names when it stands in `region`."""
        _, _, elsewhere = parse_event(event)
        return self._latest.get(event if elsewhere else f"{event}@{region.name}")


def name_waits(ops: Sequence[tuple[Region, Op]], index: int, deps: Sequence[int]) -> tuple[str, ...]:
    """`deps` (issue indices) as the op at `index` writes them in `after`; those on its own lane are left out."""
    region, op = ops[index]
    names: list[str] = []
    for dep in deps:
        other_region, other = ops[dep]
        if other.lane == op.lane:
            continue
        here = other_region.name == region.name
        names.append(f"{other.kind}({other.value})" if here else event_name(other_region, other))
    return tuple(dict.fromkeys(names))


def canonical_waits(schedule: Schedule) -> list[tuple[str, ...]]:
    """The `after` that each op should have, in issue order."""
    ops = list(schedule.ops())
    return [name_waits(ops, step.index, step.deps) for step in Flow(schedule).steps()]


def with_waits(schedule: Schedule) -> Schedule:
    """The same with its canonical waits."""
    waits = iter(canonical_waits(schedule))
    regions = tuple(Region(r.name, tuple(replace(op, after=next(waits)) for op in r.ops)) for r in schedule.regions)
    return replace(schedule, regions=regions)
