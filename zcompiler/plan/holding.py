"""Which model states stay in memory when not all of them fit: the ones whose moves cost most for the room they take.

Held in full, a unit's parameters save three moves of their bytes a step (into the update, out of it, and into backward:
the forward is handed what a late update made, else it is a fourth), a gradient two (out of backward, into the update),
a state two. So parameters stay first, then gradients, then states; in each kind whatever fits, and in the end what
saves more instead of what saves less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zcompiler.plan.plan import KINDS, Placement
from zcompiler.schedule.memory import event_name, memory, peak_of
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.words import phase_of

_KIND_OF = {"param": "params", "grad": "grads", "state": "optimizer"}


@dataclass(frozen=True, slots=True)
class Held:
    """The outcome: a placement, the bytes that an op of it holds at most by this account, and for each kind a sentence
    with the numbers behind it."""

    placement: Placement
    most: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """One kind of state of one bucket that may be held. `more`: bytes that each op then holds more."""

    kind: str
    bucket: str
    nbytes: int
    saved: int
    more: NDArray[np.int64]


class _Moves:
    """How many moves of its bytes a step makes less when a bucket's kind of state is held."""

    def __init__(self, schedule: Schedule, late: bool) -> None:
        params = {v.name for v in schedule.values if v.kind == "param"}
        reads = [
            params.intersection(op.reads)
            for region, op in schedule.ops()
            if op.kind == "run" and phase_of(region.name) == "fwd"
        ]
        self._kept_over = next((read for read in reversed(reads) if read), set())
        self._late = late

    def saved(self, kind: str, bucket: str) -> int:
        if kind != "params":
            return 2
        # The last unit of forward is the first of backward, and is kept from one to the other.
        return (3 if self._late else 4) - (bucket in self._kept_over)


def hold_what_fits(
    account: Account,
    placement: Placement,
    free: Mapping[str, Sequence[str]],
    limit: int,
    update_room: int,
    late: bool,
    slack: int = 0,
) -> Held:
    """Move units of `free` (kind -> buckets that the planner may choose for, in the order of use) from their home in
    the store to the compute tier, as long as no op holds more than `limit` bytes.

    `account` is of the placed schedule behind its passes. `update_room`: bytes that an update takes beside what rests
    in memory. A `late` one goes on during the next forward, where the
    gradients in memory are held until it comes to them. `slack`: bytes by which this account is known to be too high
    (the buffers through which something moved are not needed once it is held).
    """
    schedule = account.schedule
    compute, sizes = schedule.compute_tier.name, account.sizes
    resting = sum(resting_bytes(schedule, placement, account.gradients).values())
    moves = _Moves(schedule, late)
    room = _Room(account, limit, slack, resting + update_room, beside_forward=update_room if late else 0)
    reasons, left = [], []
    for kind in KINDS:
        candidates = [b for b in free.get(kind, ()) if sizes.get((kind, b))]
        held, first_not = 0, ""
        # Large ones first: small ones fit into what is left. Equal ones stay in the order of use.
        for bucket in sorted(candidates, key=lambda b: -sizes[kind, b]):
            size = sizes[kind, bucket]
            more = account.held_more(kind, bucket, size)
            item = _Item(kind, bucket, size, moves.saved(kind, bucket) * size, more)
            if (over := room.take(item)) is None:
                held += size
            else:
                left.append(item)
                first_not = first_not or f"; with {bucket} {over}"
        if held:
            count = sum(item.kind == kind for item in room.held)
            text = f"{count} of {len(candidates)} units, {format_bytes(held)}{first_not}"
            reasons.append(f"{kind} held in {compute}: {text}")
    for item in sorted(left, key=lambda i: -i.saved):
        if gone := room.exchange(item):
            names = ", ".join(f"{i.kind} of {i.bucket}" for i in gone)
            saved = format_bytes(item.saved - sum(i.saved for i in gone))
            reasons.append(f"{item.kind} of {item.bucket} held instead of {names}: moves {saved} less")
    chosen = dict(placement)
    for item in room.held:
        chosen[item.bucket] = replace(chosen[item.bucket], **{item.kind: compute})
    return Held(chosen, room.most(), tuple(reasons))


class _Room:
    """The limit, and what is held within it at each op and when the optimizer steps."""

    def __init__(self, account: Account, limit: int, slack: int, update: int, beside_forward: int) -> None:
        """`update` bytes are held when the optimizer steps; `beside_forward`: for an update that goes on then."""
        self._ops = list(account.schedule.ops())
        self._limit, self._update = limit, update
        self._spare = np.zeros(len(self._ops), dtype=np.int64)
        self._spare[[phase_of(region.name) == "fwd" for region, _ in self._ops]] = beside_forward
        self._during = account.during + self._spare - slack
        self._spare -= slack
        self.held: list[_Item] = []

    def most(self) -> int:
        """Bytes that an op holds at most, without what is spared for others."""
        return int((self._during - self._spare).max(initial=0))

    def take(self, item: _Item) -> str | None:
        """Hold it, if there is room; otherwise what would go over the limit, in words."""
        then = self._during + item.more
        most, update = int(then.max(initial=0)), self._update + item.nbytes
        if most > self._limit:
            where = event_name(*self._ops[int(then.argmax())])
            return f"{where} would hold {format_bytes(most)} of {format_bytes(self._limit)}"
        if update > self._limit:
            return f"the optimizer step would hold {format_bytes(update)} of {format_bytes(self._limit)}"
        self._during, self._update = then, update
        self.held.append(item)
        return None

    def exchange(self, item: _Item) -> list[_Item]:
        """Hold it instead of others that together save less, if that makes the room; gives these back, else nothing."""
        gone: list[_Item] = []
        for other in sorted(self.held, key=lambda i: i.saved):
            if sum(i.saved for i in gone) + other.saved >= item.saved:
                break
            self._drop(other)
            gone.append(other)
            if self.take(item) is None:
                for back in sorted(gone, key=lambda i: -i.saved):
                    if self.take(back) is None:
                        gone.remove(back)
                return gone
        for other in gone:
            self._during, self._update = self._during + other.more, self._update + other.nbytes
            self.held.append(other)
        return []

    def _drop(self, item: _Item) -> None:
        self._during, self._update = self._during - item.more, self._update - item.nbytes
        self.held.remove(item)


def bytes_moved(schedule: Schedule, placement: Placement, gradients: Mapping[str, str], late: bool) -> int:
    """About what a step moves for model states that do not rest in the compute tier: holding would save as much."""
    compute = schedule.compute_tier.name
    sizes = state_bytes(schedule, gradients)
    moves = _Moves(schedule, late)
    return sum(moves.saved(kind, b) * n for (kind, b), n in sizes.items() if getattr(placement[b], kind) != compute)


def resting_bytes(schedule: Schedule, placement: Placement, gradients: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """What rests in the compute tier when a backward has ended: bytes by kind of Homes and bucket."""
    compute = schedule.compute_tier.name
    sizes = state_bytes(schedule, gradients)
    return {(kind, b): size for (kind, b), size in sizes.items() if getattr(placement[b], kind) == compute}


def state_bytes(schedule: Schedule, gradients: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """The model states' bytes by kind of Homes and bucket."""
    found: dict[tuple[str, str], int] = {}
    for value in schedule.values:
        if (kind := _KIND_OF.get(value.kind)) is not None:
            bucket = _bucket(value.name, kind, gradients)
            found[kind, bucket] = found.get((kind, bucket), 0) + value.nbytes
    return found


def _bucket(value: str, kind: str, gradients: Mapping[str, str]) -> str:
    if kind == "grads":
        return gradients[value]
    return value.removesuffix(":state") if kind == "optimizer" else value


class Account:
    """What each op of a placed schedule holds, `most` of it `where`, and what more when a unit rests in the compute
    tier. `gradients` maps gradient values to buckets."""

    def __init__(self, schedule: Schedule, gradients: Mapping[str, str]) -> None:
        self.schedule, self.gradients = schedule, gradients
        self.sizes = state_bytes(schedule, gradients)
        compute, used = schedule.compute_tier.name, memory(schedule)
        self.during = used.during[compute]
        self.most, self.where = peak_of(schedule, used)[compute]

    def held_more(self, kind: str, bucket: str, size: int) -> NDArray[np.int64]:
        """What each op would hold more if this kind of state of a bucket, of `size` bytes, rested there."""
        ways = self._ways
        more = np.full(ways.count, 0 if kind == "grads" else size, dtype=np.int64)
        if kind == "params":
            for start, stop in ways.gathered.get(bucket, ()):
                more[start:stop] -= size
        elif kind == "grads":
            # The gradient of the step before waits for its update, which comes before the first use.
            waits = bisect_right(ways.runs, ways.read.get(bucket, ways.count))
            more[ways.runs[:waits]] += size
            for start, nbytes in ways.stored.get(bucket, ()):
                more[start:] += nbytes
        return more

    @cached_property
    def _ways(self) -> _Ways:
        return _ways(self.schedule, self.gradients)


@dataclass(frozen=True, slots=True)
class _Ways:
    """When copies of what rests elsewhere are in the compute tier. Ops are counted: there are `count` of them."""

    gathered: dict[str, list[tuple[int, int]]]  # bucket -> the ops at which a copy is there anyway
    stored: dict[str, list[tuple[int, int]]]  # bucket -> after which op bytes of its gradient go
    read: dict[str, int]  # bucket -> the first run of forward that reads it
    runs: list[int]  # those of forward, and the one behind them
    count: int


def _ways(schedule: Schedule, gradients: Mapping[str, str]) -> _Ways:
    nbytes = {v.name: v.nbytes for v in schedule.values}
    found = _Ways({}, {}, {}, [], sum(len(region.ops) for region in schedule.regions))
    since: dict[str, int] = {}
    in_forward = True
    for i, (region, op) in enumerate(schedule.ops()):
        if op.kind == "run" and in_forward:
            in_forward = phase_of(region.name) == "fwd"
            found.runs.append(i)
            for name in op.reads if in_forward else ():
                found.read.setdefault(name, i)
        elif op.kind == "read":
            since[op.value] = i
        elif op.kind == "release" and op.value in gradients:
            found.stored.setdefault(gradients[op.value], []).append((i + 1, nbytes[op.value]))
        elif op.kind == "release" and op.value in since:
            found.gathered.setdefault(op.value, []).append((since.pop(op.value), i + 1))
    return found
