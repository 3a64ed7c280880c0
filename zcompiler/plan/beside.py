"""What the regions of forward leave of the limit for an update that goes on beside them."""

from __future__ import annotations

from dataclasses import dataclass

from zcompiler.plan.update import SMALLEST_SUBGROUP
from zcompiler.schedule.memory import memory
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.words import phase_of

# While a forward computes, nobody issues the update's next transfers: enough of them must be on their way.
DEPTH = 2
LARGEST_LATE = 8 << 20
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class RegionRoom:
    """A region of forward: the bytes of the limit that it leaves, and the values that it reads."""

    left: int
    values: tuple[str, ...]


def room_in_forward(schedule: Schedule) -> list[RegionRoom]:
    """The regions of forward, in order. A tier without a budget leaves more than anybody needs."""
    tier = schedule.compute_tier
    during = iter(memory(schedule).during[tier.name])
    limit = tier.budget if tier.budget is not None else UNLIMITED
    found = []
    for region in schedule.regions:
        peak = max((int(next(during)) for _ in region.ops), default=0)
        if phase_of(region.name) == "fwd":
            reads = tuple(value for op in region.ops if op.kind == "run" for value in op.reads)
            found.append(RegionRoom(limit - peak, reads))
    return found


def late_bytes(room: int, most: int, bytes_per_param_byte: float, tail: int) -> int:
    """Bytes of parameters in a sub-group such that one of them, DEPTH that are read and DEPTH that are written, and the
    optimizer's temporaries, fit in `room`; at most `most`, and 0 when not even the smallest fits."""
    each = int(room / ((1 + 2 * DEPTH) * bytes_per_param_byte + tail))
    size = min(most, LARGEST_LATE, each // SMALLEST_SUBGROUP * SMALLEST_SUBGROUP)
    return max(0, size)
