"""Bytes live on each tier at every op of a schedule, from the schedule alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zcompiler.schedule.flow import Copy, Flow
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.words import STORE

START = "start"


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes by tier. `start` rests there before the first op; `during[t][i]` is held while op i runs (what it
    allocates and its temporaries included, what it frees not); `after[t][i]` once it is done. Arrays are int64."""

    start: dict[str, int]
    during: dict[str, NDArray[np.int64]]
    after: dict[str, NDArray[np.int64]]


def counted_tiers(schedule: Schedule) -> tuple[str, ...]:
    """The tiers whose bytes are counted: all but the store."""
    return tuple(t.name for t in schedule.tiers if t.name != STORE)


def memory(schedule: Schedule) -> Memory:
    """Follow every copy once: O(ops). Ops that break the verifier's rules (a release of nothing) count nothing."""
    tiers = counted_tiers(schedule)
    flow = Flow(schedule, deps=False)
    held = dict.fromkeys(tiers, 0)
    for copy in flow.live.values():
        _add(held, copy, 1)
    start = dict(held)
    during: dict[str, list[int]] = {t: [] for t in tiers}
    after: dict[str, list[int]] = {t: [] for t in tiers}
    compute = schedule.compute_tier.name
    for step in flow.steps():
        for copy in step.makes:
            _add(held, copy, 1)
        if step.frees and step.frees[1]:
            _add(held, step.frees[1], -1)
        for tier in tiers:
            during[tier].append(held[tier] + (step.op.work if tier == compute else 0))
            after[tier].append(held[tier])
    return Memory(start, _arrays(during), _arrays(after))


def peak(schedule: Schedule) -> dict[str, tuple[int, str]]:
    """By counted tier: the most bytes held at once, and the first op that holds them, as `run(fwd/l0)@fwd/l0`
    (`start` when what rests there is never exceeded)."""
    return peak_of(schedule, memory(schedule))


def peak_of(schedule: Schedule, used: Memory) -> dict[str, tuple[int, str]]:
    ops = list(schedule.ops())
    found: dict[str, tuple[int, str]] = {}
    for tier, during in used.during.items():
        most, where = used.start[tier], START
        if len(during) and int(during.max()) > most:
            at = int(during.argmax())
            most, where = int(during[at]), event_name(*ops[at])
        found[tier] = (most, where)
    return found


def held_at(schedule: Schedule, tier: str, at: int) -> tuple[list[Copy], int]:
    """The copies that a counted tier holds while op `at` runs (-1: before the first), in the order in which they came,
    and the bytes of the op's temporaries there."""
    flow = Flow(schedule)
    work = 0
    for step in flow.steps() if at >= 0 else ():
        if step.index == at:
            work = step.op.work if tier == schedule.compute_tier.name else 0
            break
    return [c for c in flow.live.values() if c.place.tier == tier and c.kind != "input"], work


def event_name(region: Region, op: Op) -> str:
    """The full name of the event that this op is: `read(l0)@fwd/l0`."""
    return f"{op.kind}({op.value})@{region.name}"


def _add(held: dict[str, int], copy: Copy, sign: int) -> None:
    if copy.place.tier in held and copy.kind != "input":
        held[copy.place.tier] += sign * copy.nbytes


def _arrays(lists: dict[str, list[int]]) -> dict[str, NDArray[np.int64]]:
    return {tier: np.array(values, dtype=np.int64) for tier, values in lists.items()}
