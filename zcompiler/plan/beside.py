"""In which order forwards need the parameters, and what they leave of the limit for an update that goes on beside."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zcompiler.plan.update import SMALLEST_SUBGROUP
from zcompiler.schedule.memory import memory
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.words import phase_of

# While a forward computes, nobody issues the update's next transfers: enough of them must be on their way.
DEPTH = 2
LARGEST_LATE = 8 << 20
UNLIMITED = 1 << 62

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Used:
    """An op of a forward that needs `values`, up to date: bytes of the limit that are left `before` it, since the one
    before, and beside it (`left`)."""

    before: int
    left: int
    values: tuple[str, ...]


def uses_of(schedule: Schedule) -> list[Used]:
    """The reads of parameters and the runs of a schedule's forward, in order."""
    tier, used = schedule.compute_tier, memory(schedule)
    limit = tier.budget if tier.budget is not None else UNLIMITED
    held, before = used.start[tier.name], UNLIMITED
    found = []
    for (region, op), during, after in zip(schedule.ops(), used.during[tier.name], used.after[tier.name], strict=True):
        if phase_of(region.name) == "fwd":
            # What is read has its buffer before its update goes on; what a run makes and works in comes after that.
            before = min(before, limit - (held if op.kind == "run" else int(during)))
            if op.kind == "run" or (op.kind == "read" and schedule.value(op.value).kind == "param"):
                found.append(Used(before, limit - int(during), op.reads if op.kind == "run" else (op.value,)))
                before = UNLIMITED
        held = int(after)
    return found


def room_beside(
    forwards: Sequence[tuple[Sequence[Used], Mapping[str, Sequence[Key | None]]]],
    parts: Collection[str],
    waiting: Mapping[Key, int],
) -> tuple[dict[Key, int], int]:
    """(the place of each parameter in the order of use, the bytes that are left for the update's buffers) beside these
    forwards, one after the other.

    Each is its ops and the parameters behind the values that these need, of which `parts` are rows of one
    parameter. `waiting`: the parameters of the update, and the bytes of each gradient in memory. It is held until its
    parameter is updated, which is before the first op that needs it, or the last of its rows.
    """
    place: dict[Key, int] = {}
    whole: dict[Key, int] = {}
    rows: dict[Key, int] = {}
    seen: set[str] = set()
    left: list[Used] = []
    for ops, parameters in forwards:
        for op in ops:
            for value in op.values:
                for key in parameters.get(value, ()):
                    if key is None:
                        continue
                    place.setdefault(key, len(left))
                    if value not in parts:
                        whole.setdefault(key, len(left))
                    elif value not in seen:
                        rows[key] = len(left)
                seen.add(value)
            left.append(op)
    order = {key: place.get(key, len(left)) for key in waiting}
    goes = [0] * (len(left) + 1)  # bytes of gradients, by the op before which they go
    for key, nbytes in waiting.items():
        goes[min(whole.get(key, len(left)), rows.get(key, len(left)))] += nbytes
    room, held = UNLIMITED if left else 0, sum(goes)
    for at, op in enumerate(left):
        room = min(room, op.before - held)
        held -= goes[at]
        room = min(room, op.left - held)
    return order, room


def late_bytes(room: int, most: int, bytes_per_param_byte: float, tail: int) -> int:
    """Bytes of parameters in a sub-group such that one of them, DEPTH that are read and DEPTH that are written, and the
    optimizer's temporaries, fit in `room`; at most `most`, and 0 when not even the smallest fits."""
    each = int(room / ((1 + 2 * DEPTH) * bytes_per_param_byte + tail))
    largest = max(LARGEST_LATE, most // 2)
    size = min(most, largest, each) // SMALLEST_SUBGROUP * SMALLEST_SUBGROUP
    return max(0, size)
