"""Which model states stay in memory when not all of them fit: the ones whose moves cost most for the room they take.

Held in full, a unit's parameters save three moves of their bytes a step (into the update, out of it, and into backward:
the forward is handed what the update made), a gradient two (out of backward, into the update), a state two. So
parameters stay first, then gradients, then states; in each kind whatever fits, in the order of use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zcompiler.plan.plan import KINDS, Placement
from zcompiler.schedule.memory import event_name, memory
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.words import phase_of

MOVES_SAVED = {"params": 3, "grads": 2, "optimizer": 2}
ORDER = tuple(sorted(KINDS, key=lambda kind: -MOVES_SAVED[kind]))  # sorted is stable: params, grads, optimizer
_KIND_OF = {"params": "param", "grads": "grad", "optimizer": "state"}


@dataclass(frozen=True, slots=True)
class Held:
    """The outcome: a placement, and for each kind a sentence with the numbers behind it."""

    placement: Placement
    reasons: tuple[str, ...]


def hold_what_fits(
    schedule: Schedule,
    placement: Placement,
    free: Mapping[str, Sequence[str]],
    gradients: Mapping[str, str],
    limit: int,
    update_room: int,
) -> Held:
    """Move units of `free` (kind -> buckets that the planner may choose for, in the order of use) from their home in
    the store to the compute tier, as long as no op holds more than `limit` bytes.

    `schedule` is the placed one behind its passes, `gradients` maps its gradient values to buckets. `update_room`:
    bytes that an update takes beside what rests in memory. It goes on during the next forward, where the gradients in
    memory are held until it comes to them.
    """
    compute = schedule.compute_tier.name
    during = memory(schedule).during[compute].copy()
    ops = list(schedule.ops())
    during[[phase_of(region.name) == "fwd" for region, _ in ops]] += update_room
    sizes = state_bytes(schedule, gradients)
    resting = sum(resting_bytes(schedule, placement, gradients).values())
    chosen = dict(placement)
    reasons = []
    for kind in ORDER:
        fitting, total, first_not = [], 0, ""
        candidates = [b for b in free.get(kind, ()) if sizes.get((kind, b))]
        for bucket in candidates:
            size = sizes[kind, bucket]
            then = during + _held_more(schedule, kind, bucket, gradients, size)
            most = int(then.max(initial=0))
            if most > limit or resting + size + update_room > limit:
                if not first_not:
                    where = event_name(*ops[int(then.argmax())]) if most > limit else "the optimizer step"
                    reach = most if most > limit else resting + size + update_room
                    first_not = f"; with {bucket} {where} would hold {format_bytes(reach)} of {format_bytes(limit)}"
                continue
            during, resting, total = then, resting + size, total + size
            chosen[bucket] = replace(chosen[bucket], **{kind: compute})
            fitting.append(bucket)
        if fitting:
            count = f"{len(fitting)} of {len(candidates)} units, {format_bytes(total)}"
            reasons.append(f"{kind} held in {compute}: {count}{first_not}")
    return Held(chosen, tuple(reasons))


def bytes_moved(schedule: Schedule, placement: Placement, gradients: Mapping[str, str]) -> int:
    """About what a step moves for model states that do not rest in the compute tier: holding would save as much."""
    compute = schedule.compute_tier.name
    sizes = state_bytes(schedule, gradients)
    return sum(MOVES_SAVED[kind] * n for (kind, b), n in sizes.items() if getattr(placement[b], kind) != compute)


def resting_bytes(schedule: Schedule, placement: Placement, gradients: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """What rests in the compute tier when a backward has ended: bytes by kind of Homes and bucket."""
    compute = schedule.compute_tier.name
    sizes = state_bytes(schedule, gradients)
    return {(kind, b): size for (kind, b), size in sizes.items() if getattr(placement[b], kind) == compute}


def state_bytes(schedule: Schedule, gradients: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """The model states' bytes by kind of Homes and bucket."""
    found: dict[tuple[str, str], int] = {}
    for value in schedule.values:
        kind = next((k for k, v in _KIND_OF.items() if v == value.kind), None)
        if kind is not None:
            bucket = _bucket(value.name, kind, gradients)
            found[kind, bucket] = found.get((kind, bucket), 0) + value.nbytes
    return found


def _bucket(value: str, kind: str, gradients: Mapping[str, str]) -> str:
    if kind == "grads":
        return gradients[value]
    return value.removesuffix(":state") if kind == "optimizer" else value


def _held_more(
    schedule: Schedule, kind: str, bucket: str, gradients: Mapping[str, str], size: int
) -> NDArray[np.int64]:
    """Bytes that each op holds more when the unit rests in the compute tier."""
    count = sum(len(region.ops) for region in schedule.regions)
    more = np.zeros(count, dtype=np.int64)
    if kind != "grads":
        more += size
    if kind == "optimizer":
        return more
    live: dict[str, int] = {}  # value -> the op since which a copy is there
    waits = True  # the gradient of the step before, for its update
    nbytes = {v.name: v.nbytes for v in schedule.values}
    for i, (region, op) in enumerate(schedule.ops()):
        if kind == "params" and op.value == bucket:
            if op.kind == "read":
                live[bucket] = i
            elif op.kind == "release":
                more[live.pop(bucket, 0) : i + 1] -= size
        elif kind == "grads" and waits and op.kind == "run":
            waits = phase_of(region.name) == "fwd" and bucket not in op.reads
            more[i] += size
        elif kind == "grads" and op.kind == "release" and gradients.get(op.value) == bucket:
            more[i + 1 :] += nbytes[op.value]
    return more
