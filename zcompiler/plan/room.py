"""What a bare schedule holds besides the values of its runs: copies on their way to their place, and until when."""

from __future__ import annotations

from dataclasses import replace

import torch

from zcompiler.analyse.sizes import Sizes, nbytes
from zcompiler.capture.cut import Cut
from zcompiler.schedule.model import Op, Region, Schedule


def with_room_for_parts(schedule: Schedule, parts: frozenset[str]) -> Schedule:
    """Gradients of tiles are copied to their place in the one of the parameter: for each, `parts`, that is there twice
    while its region runs."""
    regions = []
    for region in schedule.regions:
        ops = tuple(
            replace(op, work=op.work + sum(schedule.value(n).nbytes for n in op.writes if n in parts))
            for op in region.ops
        )
        regions.append(replace(region, ops=ops))
    return replace(schedule, regions=tuple(regions))


def with_room_for_stored_gradients(schedule: Schedule, stored: frozenset[str]) -> Schedule:
    """A region's gradients are copied to the buffers they are written from, while those before may still be on their
    way: that much more is held while it runs. They may also be in the region after it, though it stores none."""
    size = {v.name: v.nbytes for v in schedule.values if v.name in stored}
    largest, before = max(size.values(), default=0), 0
    regions = []
    for region in schedule.regions:
        ops = []
        for op in region.ops:
            if op.kind == "run":
                made = sum(size.get(name, 0) for name in op.writes)
                trailing = largest if made or before else 0
                op, before = replace(op, work=op.work + made + trailing), made
            ops.append(op)
        regions.append(replace(region, ops=tuple(ops)))
    return replace(schedule, regions=tuple(regions))


def with_releases(schedule: Schedule) -> Schedule:
    """Release each activation right after the last run that touches it."""
    last: dict[str, tuple[int, int]] = {}
    for r, region in enumerate(schedule.regions):
        for o, op in enumerate(region.ops):
            for name in (*op.reads, *op.writes):
                if schedule.value(name).kind == "act":
                    last[name] = (r, o)
    at: dict[tuple[int, int], list[str]] = {}
    for name, place in last.items():
        at.setdefault(place, []).append(name)
    tier = schedule.compute_tier.name
    regions = []
    for r, region in enumerate(schedule.regions):
        ops: list[Op] = []
        for o, op in enumerate(region.ops):
            ops.append(op)
            ops += [Op(op.lane, "release", name, src=tier) for name in sorted(at.get((r, o), ()))]
        regions.append(Region(region.name, tuple(ops)))
    return Schedule(schedule.name, schedule.tiers, schedule.values, tuple(regions), schedule.rank, schedule.world)


def more_to_sum(cut: Cut, whole: str, sizes: Sizes) -> int:
    """What adding parts up takes besides the sum: those of 16 bits are added in 32, and then rounded."""
    fake = cut.fakes[whole]
    narrow = isinstance(fake, torch.Tensor) and fake.dtype.itemsize < 4
    return 2 * nbytes(fake, sizes) if narrow and cut.joins[whole].axis is None else 0
