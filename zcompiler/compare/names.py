"""Which value and region of one schedule is which of another, when their names differ.

Names carry no meaning: a torch release may number intermediates anew, a user may rename a layer. So what counts is
where a value is used first, and names help only where that leaves a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from zcompiler.schedule.model import Op, Region, Schedule, Value
from zcompiler.schedule.waits import canonical_waits
from zcompiler.schedule.words import phase_of

# What an op waits for, where that is what follows from the ops as it must, and where nothing is written.
FOLLOWS, NOTHING = "what-it-uses", "nothing"

T = TypeVar("T")

# These are named by the user's modules and arguments, acts by the compiler that makes them.
_NAMED = ("param", "state", "grad", "input")


@dataclass(frozen=True, slots=True)
class Names:
    """Names in one schedule, and what the same is called in the other. What is missing has no counterpart there."""

    values: dict[str, str] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    def renamed(self) -> dict[str, str]:
        """Those of values and regions that differ."""
        return {a: b for names in (self.values, self.regions) for a, b in names.items() if a != b}


def possible_names(a: Schedule, b: Schedule) -> Iterator[Names]:
    """Ways to match them, the most literal first: by all names; by those of the user; by the order of use alone."""
    regions_of_b = {r.name for r in b.regions}
    same_regions = {r.name: r.name for r in a.regions if r.name in regions_of_b}
    kinds = {v.name: v.kind for v in b.values}
    same = {v.name: v.name for v in a.values if kinds.get(v.name) == v.kind}
    yield _Walk(a, b, same, same_regions).names()
    user = {name: name for name in same if kinds[name] in _NAMED}
    yield _Walk(a, b, user, same_regions).names()
    yield _Walk(a, b, {}, {}).names()


class _Walk:
    """Goes through both in issue order and matches what is still unmatched."""

    def __init__(self, a: Schedule, b: Schedule, values: dict[str, str], regions: dict[str, str]) -> None:
        self.a, self.b = a, b
        self.values, self.regions, self.runs = dict(values), dict(regions), dict[str, str]()
        self.taken = set(values.values())

    def names(self) -> Names:
        a, b = self.a, self.b
        taken = set(self.regions.values())
        left_a = [r for r in a.regions if r.name not in self.regions]
        left_b = [r for r in b.regions if r.name not in taken]
        self.regions |= {x.name: y.name for x, y in _pairs(left_a, left_b, (_region_form,))}
        there = {r.name: r for r in b.regions}
        both = [(r, there[self.regions[r.name]]) for r in a.regions if r.name in self.regions]
        for x, y in both:
            for run, other in zip(_runs(x), _runs(y), strict=False):
                self.runs[run.value] = other.value
                self._match((self._values(a, run.reads), self._values(b, other.reads)))
                self._match((self._values(a, run.writes), self._values(b, other.writes)))
        for x, y in both:
            self._match((self._values(a, _moved(x)), self._values(b, _moved(y))))
        # What is left rests somewhere and is not used, or is used where the other schedule has nothing.
        names = {v.name for v in b.values} - self.taken
        same = [v for v in a.values if v.name not in self.values and v.name in names]
        for value in same:
            if b.value(value.name).kind == value.kind:
                self._take(value.name, value.name)
        used = [{n for _, op in s.ops() for n in _names_in(op)} for s in (a, b)]
        self._match(([v for v in a.values if v.name not in used[0]], [v for v in b.values if v.name not in used[1]]))
        return Names(self.values, self.regions, self.runs)

    def _values(self, schedule: Schedule, names: Iterable[str]) -> list[Value]:
        return [schedule.value(name) for name in dict.fromkeys(names)]

    def _match(self, values: tuple[list[Value], list[Value]]) -> None:
        left = [v for v in values[0] if v.name not in self.values]
        right = [v for v in values[1] if v.name not in self.taken]
        for x, y in _pairs(left, right, (_value_form, lambda v: v.kind)):
            self._take(x.name, y.name)

    def _take(self, a: str, b: str) -> None:
        self.values[a] = b
        self.taken.add(b)


def _pairs(left: Sequence[T], right: Sequence[T], forms: Sequence[Callable[[T], object]]) -> Iterator[tuple[T, T]]:
    """Pairs of the same form, in order: first those of the first form, then of what is left those of the next."""
    for form in forms:
        waiting: dict[object, list[T]] = {}
        for y in right:
            waiting.setdefault(form(y), []).append(y)
        met = [(x, same.pop(0)) for x in left if (same := waiting.get(form(x)))]
        yield from met
        done = {id(one) for pair in met for one in pair}
        left = [x for x in left if id(x) not in done]
        right = [y for y in right if id(y) not in done]


def _region_form(region: Region) -> object:
    return phase_of(region.name), tuple((len(op.reads), len(op.writes)) for op in _runs(region))


def _value_form(value: Value) -> object:
    return value.kind, value.dtype, value.shape, value.nbytes


def _runs(region: Region) -> list[Op]:
    return [op for op in region.ops if op.kind == "run"]


def _moved(region: Region) -> list[str]:
    return [op.value for op in region.ops if op.kind != "run"]


def _names_in(op: Op) -> tuple[str, ...]:
    return (*op.reads, *op.writes) if op.kind == "run" else (op.value,)


def with_names(schedule: Schedule, names: Names, others: Iterable[str]) -> Schedule:
    """The schedule in the other's words. What has no counterpart keeps its name, with a mark if that is taken there.

    `after` is FOLLOWS where it is what follows from the ops, as it always is in a schedule that keeps the rules.
    """
    taken = {*names.values.values(), *others}

    def value(name: str) -> str:
        return names.values.get(name) or (f"{name}(old)" if name in taken else name)

    def region(name: str) -> str:
        return names.regions.get(name) or (f"{name}(old)" if name in names.regions.values() else name)

    waits = iter(canonical_waits(schedule))
    regions = []
    for one in schedule.regions:
        ops = []
        for op in one.ops:
            run = op.kind == "run"
            op = replace(
                op,
                value=names.runs.get(op.value, region(op.value)) if run else value(op.value),
                reads=tuple(map(value, op.reads)),
                writes=tuple(map(value, op.writes)),
                for_region=region(op.for_region) if op.for_region else "",
                after=(FOLLOWS,) if op.after == next(waits) else op.after or (NOTHING,),
            )
            ops.append(op)
        regions.append(Region(region(one.name), tuple(ops)))
    values = tuple(replace(v, name=value(v.name)) for v in schedule.values)
    return replace(schedule, values=values, regions=tuple(regions))
