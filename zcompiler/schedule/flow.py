"""Follows each copy of each value through a schedule: which op makes it, which use it, which frees it.

Memory, verifier, waits and the FX graph all stand on this one walk, so they cannot disagree about liveness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zcompiler.schedule.model import Op, Region, Schedule, Value
from zcompiler.schedule.words import COMM_KINDS, UPDATE_LANE


class Place(NamedTuple):
    """Where a copy is: one form of a value on one tier."""

    value: str
    form: str
    tier: str

    def __str__(self) -> str:
        return f"{self.value}:{self.form}@{self.tier}"


@dataclass(slots=True, eq=False)
class Copy:
    """A live copy. `maker` allocated it, `producer` wrote it last (-1: there before the first op), `users` read it
    since then. `dirty`: a run wrote it and the home does not know yet."""

    place: Place
    nbytes: int
    kind: str
    maker: int = -1
    producer: int = -1
    users: list[int] = field(default_factory=list)
    dirty: bool = False


@dataclass(slots=True, eq=False)
class Step:
    """What one op did. `deps` are the ops it has to follow, by issue index; none where they are not asked for."""

    index: int
    region: Region
    op: Op
    uses: tuple[tuple[Place, Copy | None], ...]
    makes: tuple[Copy, ...]
    rewrites: tuple[Copy, ...]
    frees: tuple[Place, Copy | None] | None
    deps: tuple[int, ...]
    stale: Copy | None  # a dirty copy the op should have waited to see at home
    twice: Copy | None  # a copy that was live already where the op makes another


def moved_form(schedule: Schedule, value: Value) -> str:
    """The form that rests and moves: `shard` if the value is partitioned over several ranks, else `full`."""
    return "full" if schedule.world == 1 or value.shard is None else "shard"


def form_bytes(value: Value, form: str) -> int:
    return value.nbytes if form == "full" or value.shard is None else value.shard


def rest_place(schedule: Schedule, value: Value) -> Place | None:
    """Where the value rests. Model states without a home rest on the compute tier, inputs and outputs always do."""
    compute = schedule.compute_tier.name
    if value.kind in ("param", "grad", "state"):
        return Place(value.name, moved_form(schedule, value), value.home or compute)
    if value.kind in ("input", "output"):
        return Place(value.name, "full", compute)
    return Place(value.name, "full", value.home) if value.home else None


def may_stay(schedule: Schedule, copy: Copy, value: Value) -> bool:
    """Whether this copy may be live at the end: it is at home, and not an activation."""
    return value.kind != "act" and copy.place == rest_place(schedule, value)


class Flow:
    """The state of the walk: `live` copies by place. Unknown names are followed as values of no size. `deps`: whether
    to find out what each op has to follow."""

    def __init__(self, schedule: Schedule, deps: bool = True) -> None:
        self.schedule, self._deps = schedule, deps
        self.values = {v.name: v for v in schedule.values}
        self.compute = schedule.compute_tier.name
        self.live: dict[Place, Copy] = {}
        self.ever: set[Place] = set()
        self._dirty: dict[str, list[Copy]] = {}
        self._full: dict[str, Place] = {}  # found once for each value: a walk asks for them at every op
        self._rest: dict[str, Place | None] = {}
        for value in self._at_rest():
            place = rest_place(schedule, value)  # of this one, should two have its name
            assert place is not None
            self._make(place, -1)

    def steps(self) -> Iterator[Step]:
        for index, (region, op) in enumerate(self.schedule.ops()):
            yield self._step(index, region, op)

    def value(self, name: str) -> Value:
        return self.values.get(name) or Value(name, "act", "", 0)

    def _at_rest(self) -> Iterator[Value]:
        # A gradient is there from the start unless the first op to mention it is a run that makes it anew.
        made_here: set[str] = set()
        seen: set[str] = set()
        for _, op in self.schedule.ops():
            if op.kind == "run":
                made_here.update(set(op.writes) - seen - set(op.reads))
                seen.update(op.reads, op.writes)
            else:
                seen.add(op.value)
        for value in self.schedule.values:
            always = value.kind in ("param", "state", "input")
            if always or (value.kind == "grad" and value.name not in made_here):
                yield value

    def _make(self, place: Place, index: int) -> Copy:
        value = self.value(place.value)
        copy = Copy(place, form_bytes(value, place.form), value.kind, maker=index, producer=index)
        self.live[place] = copy
        self.ever.add(place)
        return copy

    def _step(self, index: int, region: Region, op: Op) -> Step:
        if op.kind == "release":
            return self._release(index, region, op)
        if op.kind == "run":
            return self._run(index, region, op)
        if op.kind in COMM_KINDS and self.schedule.world == 1:  # moves nothing; the verifier reports it
            return Step(index, region, op, (), (), (), None, (), None, None)
        return self._move(index, region, op)

    def _release(self, index: int, region: Region, op: Op) -> Step:
        place = Place(op.value, op.form, op.src)
        copy = self.live.pop(place, None)
        deps: list[int] = []
        if copy:
            deps = copy.users or [copy.producer]
        return Step(index, region, op, (), (), (), (place, copy), self._order(deps), None, None)

    def _move(self, index: int, region: Region, op: Op) -> Step:
        src, dst = self.ends(op)
        source, old = self.live.get(src), self.live.get(dst)
        twice = None
        if old and dst != self._rest_of(op.value):
            twice, old = old, None  # only a home is overwritten; elsewhere this is one more copy
        deps: list[int] = []
        stale = self._stale(op.value, source)
        if source:
            deps.append(source.producer)
            source.users.append(index)
        if old:
            deps += [old.producer, *(u for u in old.users if source is None or u != source.maker)]
            old.producer, old.users = index, []
        made = old or self._make(dst, index)
        if source and source.dirty:
            self._set_dirty(source, False)
            self._set_dirty(made, dst != self._rest_of(op.value))
        makes, rewrites = ((), (old,)) if old else ((made,), ())
        return Step(index, region, op, ((src, source),), makes, rewrites, None, self._order(deps), stale, twice)

    def _run(self, index: int, region: Region, op: Op) -> Step:
        uses: list[tuple[Place, Copy | None]] = []
        makes: list[Copy] = []
        rewrites: list[Copy] = []
        deps: list[int] = []
        for name in op.reads:
            place = self.operand(op, name)
            copy = self.live.get(place)
            uses.append((place, copy))
            if copy:
                deps.append(copy.producer)
                copy.users.append(index)
        for name in op.writes:
            place = self.operand(op, name)
            copy = self.live.get(place)
            if copy:
                deps += [copy.producer, *(u for u in copy.users if u != index)]
                copy.producer, copy.users = index, []
                rewrites.append(copy)
            else:
                copy = self._make(place, index)
                makes.append(copy)
            value = self.value(name)
            if value.kind in ("param", "grad", "state"):
                self._set_dirty(copy, place != self._rest_of(name))
        order = self._order(deps)
        return Step(index, region, op, tuple(uses), tuple(makes), tuple(rewrites), None, order, None, None)

    def operand(self, op: Op, name: str) -> Place:
        """The place a run takes a value from: the full form, except that an update works on the rank's own shard."""
        if op.lane == UPDATE_LANE:
            return Place(name, moved_form(self.schedule, self.value(name)), self.compute)
        if (place := self._full.get(name)) is None:
            place = self._full[name] = Place(name, "full", self.compute)
        return place

    def _rest_of(self, name: str) -> Place | None:
        if name not in self._rest:
            self._rest[name] = rest_place(self.schedule, self.value(name))
        return self._rest[name]

    def ends(self, op: Op) -> tuple[Place, Place]:
        """From which place to which an op other than a run or a release carries its value."""
        if op.kind in COMM_KINDS:
            shard, full = (Place(op.value, form, self.compute) for form in ("shard", "full"))
            return (shard, full) if op.kind == "all_gather" else (full, shard)
        form = moved_form(self.schedule, self.value(op.value))
        return Place(op.value, form, op.src), Place(op.value, form, op.dst)

    def _set_dirty(self, copy: Copy, dirty: bool) -> None:
        copies = self._dirty.setdefault(copy.place.value, [])
        if dirty and not copy.dirty:
            copies.append(copy)
        elif copy.dirty and not dirty:
            copies.remove(copy)
        copy.dirty = dirty

    def _stale(self, name: str, source: Copy | None) -> Copy | None:
        if source is None or source.dirty or source.place != self._rest_of(name):
            return None
        return next((c for c in self._dirty.get(name, ()) if self.live.get(c.place) is c), None)

    def _order(self, deps: list[int]) -> tuple[int, ...]:
        return tuple(sorted({d for d in deps if d >= 0})) if self._deps else ()
