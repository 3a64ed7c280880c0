"""How two schedules differ, op by op, when names and the order of the header are left out of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeVar

from zcompiler.compare.names import Names, possible_names, with_names
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.schedule.sizes import format_bytes

T = TypeVar("T", bound=Hashable)

ADDED, REMOVED, MOVED, CHANGED = "added", "removed", "moved", "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `what` it concerns: plan, tier, value, region or op. `how`: added, removed, moved, changed.

    `before` and `after` are where an op or region stands, or what has changed about a value; empty where there is none.
    """

    what: str
    how: str
    name: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Two schedules in the words of the second. `pairs` of ops by issue index: (old, new), None for nothing there."""

    old: Schedule
    new: Schedule
    renamed: dict[str, str]
    pairs: tuple[tuple[int | None, int | None], ...]
    changes: tuple[Change, ...]


def compare(old: Schedule, new: Schedule) -> Match:
    """The differences of two schedules, as few as the ways to match their names allow."""
    plain = with_names(new, Names(), ())
    best: Match | None = None
    for names in possible_names(old, new):
        match = _compare(with_names(old, names, (v.name for v in new.values)), plain, names)
        if best is None or len(match.changes) < len(best.changes):
            best = match
        if not best.changes:
            break
    assert best is not None
    return best


def op_label(op: Op) -> str:
    """What an op is, in a few words: `read l0`, `release l0:full@host`."""
    return f"{op.kind} {op.value}:{op.form}@{op.src}" if op.kind == "release" else f"{op.kind} {op.value}"


def _compare(old: Schedule, new: Schedule, names: Names) -> Match:
    pairs = tuple(_op_pairs(list(old.ops()), list(new.ops())))
    changes = (*_header(old, new), *_regions(old, new), *_ops(old, new, pairs))
    return Match(old, new, names.renamed(), pairs, changes)


def _header(old: Schedule, new: Schedule) -> Iterator[Change]:
    for what in ("world", "rank"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            yield Change("plan", CHANGED, what, str(before), str(after))
    yield from _declared("tier", {t.name: t for t in old.tiers}, {t.name: t for t in new.tiers})
    yield from _declared("value", {v.name: v for v in old.values}, {v.name: v for v in new.values})


def _declared(
    what: str, old: dict[str, Tier] | dict[str, Value], new: dict[str, Tier] | dict[str, Value]
) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            there = before or after
            assert there is not None
            text = " ".join(_traits(there).values())
            yield Change(what, *((ADDED, name, "", text) if before is None else (REMOVED, name, text, "")))
            continue
        ours, theirs = _traits(before), _traits(after)
        differing = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
        if differing:
            texts = (" ".join(traits.get(key, f"no {key}") for key in differing) for traits in (ours, theirs))
            yield Change(what, CHANGED, name, *texts)


def _traits(declared: Tier | Value) -> dict[str, str]:
    if isinstance(declared, Tier):
        found = {"budget": "" if declared.budget is None else format_bytes(declared.budget)}
        found["compute"] = "compute" if declared.compute else ""
    else:
        found = {"kind": declared.kind, "dtype": declared.dtype}
        found["shape"] = "" if declared.shape is None else f"[{','.join(map(str, declared.shape))}]"
        found["size"] = format_bytes(declared.nbytes)
        found["shard"] = "" if declared.shard is None else f"shard={format_bytes(declared.shard)}"
        found["home"] = "" if declared.home is None else f"home={declared.home}"
    return {key: text for key, text in found.items() if text}


def _regions(old: Schedule, new: Schedule) -> Iterator[Change]:
    ours, theirs = [r.name for r in old.regions], [r.name for r in new.regions]
    yield from (Change("region", REMOVED, name) for name in ours if name not in theirs)
    yield from (Change("region", ADDED, name) for name in theirs if name not in ours)
    both = [name for name in ours if name in theirs]
    for name in _out_of_order(both, [name for name in theirs if name in ours]):
        yield Change("region", MOVED, name, _behind(ours, name), _behind(theirs, name))


def _behind(names: Sequence[str], name: str) -> str:
    at = names.index(name)
    return f"behind {names[at - 1]}" if at else "first"


def _out_of_order(old: Sequence[T], new: Sequence[T]) -> list[T]:
    """What has to move to make one order the other: both hold the same things."""
    kept = [
        old[b.a + i]
        for b in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        for i in range(b.size)
    ]
    stay = set(kept)
    return [one for one in new if one not in stay]


def _op_pairs(
    old: Sequence[tuple[Region, Op]], new: Sequence[tuple[Region, Op]]
) -> Iterator[tuple[int | None, int | None]]:
    """Each op with its counterpart: the one of the same kind, value and place for the same region, else for another."""
    left, right = list(range(len(old))), list(range(len(new)))
    for form in (_op_for_region, _op_anywhere):
        waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
        for j in reversed(right):
            waiting[form(*new[j])].append(j)
        met = {i: same.pop() for i in left if (same := waiting[form(*old[i])])}
        yield from met.items()
        left = [i for i in left if i not in met]
        there = set(met.values())
        right = [j for j in right if j not in there]
    yield from ((i, None) for i in left)
    yield from ((None, j) for j in right)


def _op_anywhere(region: Region, op: Op) -> Hashable:
    return op.kind, op.value, op.form, op.src, op.dst


def _op_for_region(region: Region, op: Op) -> Hashable:
    return _op_anywhere(region, op), op.for_region or region.name


def _ops(old: Schedule, new: Schedule, pairs: Sequence[tuple[int | None, int | None]]) -> Iterator[Change]:
    ours, theirs = list(old.ops()), list(new.ops())
    out = _moved_within(ours, theirs, pairs)
    for i, j in sorted(pairs, key=lambda pair: (pair[1] if pair[1] is not None else pair[0] or 0, pair[1] is None)):
        if i is None or j is None:
            region, op = theirs[j] if j is not None else ours[i or 0]
            how = (ADDED, _name(op), "", region.name) if i is None else (REMOVED, _name(op), region.name, "")
            yield Change("op", *how)
            continue
        (before, a), (after, b) = ours[i], theirs[j]
        if before.name != after.name:
            yield Change("op", MOVED, _name(b), before.name, after.name)
        elif j in out:
            yield Change(
                "op", MOVED, _name(b), f"{before.name} {_follows(before, a)}", f"{after.name} {_follows(after, b)}"
            )
        yield from _attributes(after, a, b)


def _attributes(region: Region, a: Op, b: Op) -> Iterator[Change]:
    name = _name(b) if b.value == region.name else f"{_name(b)} in {region.name}"
    if a.lane != b.lane:
        yield Change("op", CHANGED, name, f"lane {a.lane}", f"lane {b.lane}")
    if a.work != b.work:
        yield Change("op", CHANGED, name, f"work={format_bytes(a.work)}", f"work={format_bytes(b.work)}")
    for what in ("reads", "writes", "after"):
        before, after = Counter(getattr(a, what)), Counter(getattr(b, what))
        if before != after:
            texts = (" ".join(sorted(names)) for names in (before - after, after - before))
            gone, come = (f"{what} {names}" if names else "" for names in texts)
            yield Change("op", CHANGED, name, gone, come)


def _moved_within(
    ours: Sequence[tuple[Region, Op]],
    theirs: Sequence[tuple[Region, Op]],
    pairs: Sequence[tuple[int | None, int | None]],
) -> set[int]:
    """Ops, by their index in the new schedule, that stand in another order in the same region."""
    found: set[int] = set()
    by_region: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, j in pairs:
        if i is not None and j is not None and ours[i][0].name == theirs[j][0].name:
            by_region[theirs[j][0].name].append((i, j))
    for both in by_region.values():
        old_order, new_order = [j for _, j in sorted(both)], sorted(j for _, j in both)
        if old_order != new_order:
            found.update(_out_of_order(old_order, new_order))
    return found


def _follows(region: Region, op: Op) -> str:
    at = next(i for i, other in enumerate(region.ops) if other is op)
    return f"behind {op_label(region.ops[at - 1])}" if at else "first"


def _name(op: Op) -> str:
    return f"{op.lane} {op_label(op)}"
