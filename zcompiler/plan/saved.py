"""Activations that the user wants offloaded: which, and what memory their moves take."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace

from zcompiler.options import Activations
from zcompiler.plan.step import Step
from zcompiler.schedule.model import Region, Schedule
from zcompiler.schedule.sizes import format_bytes

# What takes less than a page in memory would take a page on its way: nothing is won.
LEAST = 4 << 10


def offloaded_activations(schedule: Schedule, asked: Activations, store: str, fixed: Sequence[str]) -> str:
    """Which activations go to the store, as the options of the pass; empty for none. Those in `fixed` stay."""
    forward = [r for r in schedule.regions if r.phase == "fwd"]
    made_in = [r.name for r in forward if asked.offloads(_unit_of(r))]
    if not made_in:
        return ""
    text = f"home={store} least={format_bytes(LEAST)}"
    if len(made_in) < len(forward):
        text += f" regions={_globs(made_in)}"
    return text + (f" keep={_globs(fixed)}" if fixed else "")


def activations_needed_at_once(schedule: Schedule) -> int:
    """The most bytes of forward's activations that one region of backward is the first to read."""
    made = {name for region, op in schedule.ops() if region.phase == "fwd" for name in op.writes}
    needed: dict[str, int] = {}
    for region, op in schedule.ops():
        if region.phase == "bwd":
            first = made & set(op.reads)
            made -= first
            needed[region.name] = needed.get(region.name, 0) + sum(schedule.value(n).nbytes for n in first)
    return max(needed.values(), default=0)


def saved_bytes(schedule: Schedule) -> int:
    """The bytes of activations that forward leaves to backward."""
    return sum(schedule.value(name).nbytes for name in _saved(schedule))


def without_saved(schedule: Schedule) -> Schedule:
    """The same as if those took no memory: what no choice for them can beat."""
    saved = _saved(schedule)
    values = tuple(replace(v, nbytes=0) if v.name in saved else v for v in schedule.values)
    return replace(schedule, values=values)


def _saved(schedule: Schedule) -> set[str]:
    made = {name for region, op in schedule.ops() if region.phase == "fwd" for name in op.writes}
    used = {name for region, op in schedule.ops() if region.phase == "bwd" for name in op.reads}
    return {name for name in made & used if schedule.value(name).kind == "act"}


def with_room_for_copies(step: Step) -> Step:
    """The same with room to copy each activation, behind its last run in forward, to the buffer from which it is
    written: one by one, as the other form goes when it is done."""
    schedule = step.schedule
    last: dict[str, str] = {}
    for region, op in schedule.ops():
        if region.phase == "fwd":
            last.update((name, region.name) for name in (*op.reads, *op.writes) if name in step.saved)
    copied: dict[str, int] = {}
    for name, region_name in last.items():
        copied[region_name] = max(copied.get(region_name, 0), schedule.value(name).nbytes)
    regions = tuple(_with_room(r, copied.get(r.name, 0)) for r in schedule.regions)
    return replace(step, schedule=replace(schedule, regions=regions))


def _with_room(region: Region, nbytes: int) -> Region:
    ops = tuple(replace(op, work=max(op.work, nbytes)) if op.kind == "run" else op for op in region.ops)
    return replace(region, ops=ops)


def _unit_of(region: Region) -> str:
    """`layers.1` of `fwd/layers.1:2`, its second region: no unit's name has a colon."""
    return region.name.split("/", 1)[1].partition(":")[0]


def _globs(names: Sequence[str]) -> str:
    return "+".join(map(glob.escape, names))
