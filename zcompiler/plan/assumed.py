"""The update that a plan counts on before anybody has seen the optimizer: of all units, in the order of their use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zcompiler.plan.beside import DEPTH, UNLIMITED, late_bytes, room_beside, uses_of
from zcompiler.plan.holding import resting_bytes, state_bytes
from zcompiler.plan.plan import Homes, Placement, describe
from zcompiler.plan.update import OPTIMIZER_WORK, SubGroup, least_bytes, subgroup_bytes, update_schedule
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes

Evaluate = Callable[[Schedule, str], Schedule]  # the schedule that a pipeline makes of one


@dataclass(frozen=True, slots=True)
class AssumedUpdate:
    """`schedule` is that of what moves, None where nothing does; `late`: whether the limit lets it go on beside the
    next forward; `in_place`: bytes of parameters that are updated where they are."""

    schedule: Schedule | None
    late: bool
    in_place: int


def assumed_update(
    schedule: Schedule, placement: Placement, gradients: Mapping[str, str], late: bool, evaluate: Evaluate
) -> AssumedUpdate:
    """The update behind a placed schedule, in the sub-groups that the limit leaves room for; `late`: if it may be so.

    DoesNotFit when not even the smallest sub-groups fit.
    """
    tier = schedule.compute_tier
    sizes = state_bytes(schedule, gradients)
    moving = {b: h for b, h in placement.items() if tier.name not in (h.params, h.optimizer) or h.params != h.optimizer}
    moving = {b: h for b, h in moving.items() if sizes.get(("grads", b))}
    whole = sum(size for (kind, _), size in sizes.items() if kind == "grads")
    in_place = whole - sum(sizes["grads", b] for b in moving)
    if not moving:
        return AssumedUpdate(None, False, in_place)
    resting = sum(resting_bytes(schedule, placement, gradients).values())
    memory = tier.budget if tier.budget is not None else UNLIMITED
    each = moved_per_byte(schedule, placement, gradients)
    size = subgroup_bytes(memory, resting, describe(placement), each, OPTIMIZER_WORK)
    waiting = {b: sizes["grads", b] if placement[b].grads == tier.name else 0 for kind, b in sizes if kind == "grads"}
    order, room = room_beside([(uses_of(schedule), {bucket: [bucket] for bucket in placement})], (), waiting)
    depth = 1
    if late and (smaller := late_bytes(room, size, each, OPTIMIZER_WORK)):
        size, depth = smaller, DEPTH
    groups: list[SubGroup] = []
    for bucket in sorted(moving, key=lambda b: order[b]):
        groups += _subgroups(bucket, moving[bucket], sizes, size)
    ahead = depth * max(group.nbytes for group in groups)
    update = update_schedule(groups, schedule.tiers, OPTIMIZER_WORK)
    update = evaluate(update, f"prefetch-reads{{bytes={format_bytes(ahead)}}}")
    return AssumedUpdate(update, depth == DEPTH, in_place)


def update_needs(schedule: Schedule, placement: Placement, gradients: Mapping[str, str]) -> int:
    """The least memory a streamed update takes: what rests in the compute tier, and the smallest buffers."""
    compute = schedule.compute_tier.name
    if not gradients or all(h.params == h.optimizer == compute for h in placement.values()):
        return 0
    resting = sum(resting_bytes(schedule, placement, gradients).values())
    return least_bytes(resting, moved_per_byte(schedule, placement, gradients), OPTIMIZER_WORK)


def moved_per_byte(schedule: Schedule, placement: Placement, gradients: Mapping[str, str]) -> float:
    """Bytes that an update moves for each byte of parameters, at most."""
    compute = schedule.compute_tier.name
    sizes = state_bytes(schedule, gradients)
    most = 0.0
    for bucket, homes in placement.items():
        if not (whole := sizes.get(("grads", bucket))):
            continue  # what has no gradient is not updated
        used = sizes["params", bucket]
        copies = used / whole if used < whole else 0.0  # cast before they are used: written beside the values
        moved = (homes.params != compute) * (1 + copies) + (homes.grads != compute)
        trained = max(whole, used)  # the states are those of all its parameters, of which only some have gradients
        most = max(most, moved + (homes.optimizer != compute) * sizes.get(("optimizer", bucket), 0) / trained)
    return most


def _subgroups(bucket: str, homes: Homes, sizes: Mapping[tuple[str, str], int], size: int) -> list[SubGroup]:
    whole, states = sizes["grads", bucket], sizes.get(("optimizer", bucket), 0)
    count = -(-whole // size)
    groups = []
    for i in range(count):
        part = min(size, whole - i * size)
        name = bucket if count == 1 else f"{bucket}[{i}]"
        groups.append(SubGroup(name, homes, part, part, part * states // whole))
    return groups
