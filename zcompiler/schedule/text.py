"""`.zsched`: a schedule as text, one op a line, and back. `docs/schedule.md` explains the form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from zcompiler.capture.names import RESERVED
from zcompiler.errors import ZinfError
from zcompiler.schedule.memory import counted_tiers, memory, peak_of
from zcompiler.schedule.model import KINDS, Op, Region, Schedule, Tier, Value
from zcompiler.schedule.sizes import format_bytes, parse_bytes
from zcompiler.schedule.words import FORM_OF, FORMS, LANES, OP_KINDS

_NAME = re.compile(r"[\w./:\[\]-]+", re.ASCII)
_EVENT = re.compile(r"(\w+)\(([\w./:\[\]-]+)\)(?:@([\w./:\[\]-]+))?", re.ASCII)
_LANE_WIDTH, _KIND_WIDTH = 11, 15


class ScheduleSyntaxError(ZinfError):
    """A text is no schedule: which line, what it says, and what was expected there."""

    def __init__(self, number: int, line: str, expected: str) -> None:
        super().__init__(f"line {number}: {line.strip()!r}: expected {expected}")
        self.number, self.line, self.expected = number, line, expected


def is_name(text: str) -> bool:
    """Whether the text may name a value, a region or a tier."""
    return bool(_NAME.fullmatch(text)) and text not in RESERVED


def print_schedule(schedule: Schedule) -> str:
    """The canonical text. ValueError if a name cannot be written."""
    return "".join(f"{line}\n" for line, _ in schedule_lines(schedule))


def schedule_lines(schedule: Schedule) -> Iterator[tuple[str, tuple[str, int] | None]]:
    """The lines of the canonical text; an op's line comes with its region's name and its index there, a region's
    own line with index -1."""
    _check_names(schedule)
    used = memory(schedule)
    yield "zsched 1", None
    yield f"plan {schedule.name} rank={schedule.rank} world={schedule.world}", None
    for tier in schedule.tiers:
        budget = "" if tier.budget is None else f" {format_bytes(tier.budget)}"
        yield f"tier {tier.name}{budget}{' compute' if tier.compute else ''}", None
    for value in schedule.values:
        yield _value_line(value), None
    tiers = counted_tiers(schedule)
    done = 0
    for region in schedule.regions:
        yield "", None
        yield f"region {region.name}", (region.name, -1)
        for i, op in enumerate(region.ops):
            yield op_line(op), (region.name, i)
        done += len(region.ops)
        live = {t: int(used.after[t][done - 1]) if done else used.start[t] for t in tiers}
        yield f"  {'live':<{_LANE_WIDTH}}{' '.join(f'{t}={format_bytes(n)}' for t, n in live.items())}", None
    yield "", None
    for name, (most, where) in peak_of(schedule, used).items():
        yield f"peak {name} {format_bytes(most)} at {where}", None


def _value_line(value: Value) -> str:
    words = ["value", value.name, value.kind, value.dtype]
    if value.shape is not None:
        words.append(f"[{','.join(map(str, value.shape))}]")
    words.append(format_bytes(value.nbytes))
    if value.shard is not None:
        words.append(f"shard={format_bytes(value.shard)}")
    if value.home is not None:
        words.append(f"home={value.home}")
    return " ".join(words)


def op_line(op: Op) -> str:
    """One op as its line."""
    words = [f"{op.value}:{op.form}@{op.src}" if op.kind == "release" else op.value]
    if op.kind != "release" and (op.src or op.dst):
        words.append(f"{op.src}->{op.dst}")
    if op.reads:
        words += ["reads", *op.reads]
    if op.writes:
        words += ["writes", *op.writes]
    if op.work:
        words.append(f"work={format_bytes(op.work)}")
    if op.for_region:
        words += ["for", op.for_region]
    if op.after:
        words += ["after", *op.after]
    return f"  {op.lane:<{_LANE_WIDTH}}{op.kind:<{_KIND_WIDTH}}{' '.join(words)}"


def _check_names(schedule: Schedule) -> None:
    names = [schedule.name, *(t.name for t in schedule.tiers), *(r.name for r in schedule.regions)]
    names += [n for v in schedule.values for n in (v.name, v.dtype)]
    names += [n for _, op in schedule.ops() for n in (op.value, *op.reads, *op.writes)]
    for name in names:
        if not is_name(name):
            raise ValueError(
                f"{name!r} cannot be a name in a schedule: use letters, digits and . _ / : - [ ], "
                f"and none of {', '.join(sorted(RESERVED))}"
            )


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text describes. `live` and `peak` lines are optional, but all or none, and must be right.

    Raises ScheduleSyntaxError (line number, line, what was expected)."""
    return _Parser(text).parse()


@dataclass
class _Parser:
    text: str
    number: int = 0
    line: str = ""
    plan: tuple[str, int, int] | None = None
    tiers: list[Tier] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    regions: list[tuple[str, list[Op]]] = field(default_factory=list)
    derived: list[tuple[int, str]] = field(default_factory=list)

    def parse(self) -> Schedule:
        header = False
        for number, line in enumerate(self.text.splitlines(), 1):
            self.number, self.line = number, line
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            if not header:
                if words != ["zsched", "1"]:
                    raise self.error("'zsched 1', the first line of every schedule")
                header = True
                continue
            self.statement(words)
        if not header or self.plan is None:
            raise self.error("'zsched 1' and a line 'plan NAME rank=R world=W'")
        if sum(t.compute for t in self.tiers) != 1:
            raise self.error("exactly one tier marked 'compute' in the whole text")
        name, rank, world = self.plan
        regions = tuple(Region(n, tuple(ops)) for n, ops in self.regions)
        schedule = Schedule(name, tuple(self.tiers), tuple(self.values), regions, rank, world)
        if self.derived:
            self.check_derived(schedule)
        return schedule

    def error(self, expected: str) -> ScheduleSyntaxError:
        return ScheduleSyntaxError(self.number, self.line, expected)

    def statement(self, words: list[str]) -> None:
        match words[0]:
            case "plan":
                self.plan_line(words)
            case "tier":
                self.tier_line(words)
            case "value":
                self.value_line(words)
            case "region":
                if len(words) != 2:
                    raise self.error("'region NAME'")
                self.regions.append((self.name(words[1]), []))
            case "live" | "peak":
                self.derived.append((self.number, " ".join(words)))
            case _:
                self.op_line(words)

    def name(self, word: str) -> str:
        if not is_name(word):
            raise self.error(f"a name (letters, digits and . _ / : - [ ], no keyword) instead of {word!r}")
        return word

    def size(self, word: str) -> int:
        try:
            return parse_bytes(word)
        except ValueError as error:
            raise self.error(f"a size: {error}") from error

    def keyed(self, word: str, key: str) -> str:
        if not word.startswith(f"{key}="):
            raise self.error(f"'{key}=...' instead of {word!r}")
        return word[len(key) + 1 :]

    def plan_line(self, words: list[str]) -> None:
        if len(words) != 4 or self.plan:
            raise self.error("one line 'plan NAME rank=R world=W'")
        rank, world = self.keyed(words[2], "rank"), self.keyed(words[3], "world")
        if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
            raise self.error("rank and world as whole numbers, rank below world")
        self.plan = (self.name(words[1]), int(rank), int(world))

    def tier_line(self, words: list[str]) -> None:
        rest = words[2:]
        compute = rest[-1:] == ["compute"]
        sizes = rest[:-1] if compute else rest
        if len(words) < 2 or len(sizes) > 1:
            raise self.error("'tier NAME [BUDGET] [compute]'")
        self.tiers.append(Tier(self.name(words[1]), self.size(sizes[0]) if sizes else None, compute))

    def value_line(self, words: list[str]) -> None:
        form = "'value NAME KIND DTYPE [SHAPE] SIZE [shard=SIZE] [home=TIER]'"
        if len(words) < 5:
            raise self.error(form)
        name, kind, dtype, *rest = words[1:]
        if kind not in KINDS:
            raise self.error(f"a kind of value ({', '.join(KINDS)}) instead of {kind!r}")
        shape = None
        if rest[0].startswith("["):
            inner = rest.pop(0)[1:-1]
            dims = inner.split(",") if inner else []
            if not rest or not all(d.isdecimal() for d in dims):
                raise self.error(form)
            shape = tuple(map(int, dims))
        nbytes = self.size(rest.pop(0))
        shard = self.size(self.keyed(rest.pop(0), "shard")) if rest and rest[0].startswith("shard=") else None
        home = self.name(self.keyed(rest.pop(0), "home")) if rest else None
        if rest:
            raise self.error(form)
        self.values.append(Value(self.name(name), kind, self.name(dtype), nbytes, shape, shard, home))

    def op_line(self, words: list[str]) -> None:
        if words[0] not in LANES:
            raise self.error(f"plan, tier, value, region, live, peak or a lane ({', '.join(LANES)})")
        if len(words) < 3 or words[1] not in OP_KINDS:
            raise self.error(f"'LANE KIND VALUE ...' where KIND is one of {', '.join(OP_KINDS)}")
        if not self.regions:
            raise self.error("'region NAME' before the first op")
        lane, kind, value = words[:3]
        rest = words[3:]
        form, src, dst = FORM_OF.get(kind, ""), "", ""
        if kind == "release":
            value, at, src = value.rpartition("@")
            value, colon, form = value.rpartition(":")  # names may hold colons, so the last one counts
            if not (colon and at) or form not in FORMS:
                raise self.error("what to release as VALUE:FORM@TIER, FORM full or shard")
            src = self.name(src)
        elif rest and "->" in rest[0]:
            src, dst = (self.name(w) if w else "" for w in rest.pop(0).split("->", 1))
        reads = self.listed(rest, "reads")
        writes = self.listed(rest, "writes")
        work = self.size(self.keyed(rest.pop(0), "work")) if rest and rest[0].startswith("work=") else 0
        for_region = ""
        if rest[:1] == ["for"]:
            for_region = self.name(rest[1]) if len(rest) > 1 else ""
            if not for_region:
                raise self.error("the region this line is for")
            del rest[:2]
        after = self.listed(rest, "after")
        for event in after:
            if not _EVENT.fullmatch(event):
                raise self.error(f"an event as KIND(VALUE) or KIND(VALUE)@REGION instead of {event!r}")
        if rest:
            raise self.error("'[SRC->DST] [reads ...] [writes ...] [work=SIZE] [for REGION] [after ...]' in this order")
        op = Op(lane, kind, self.name(value), form, src, dst, reads, writes, work, after, for_region)
        self.regions[-1][1].append(op)

    def listed(self, rest: list[str], keyword: str) -> tuple[str, ...]:
        if rest[:1] != [keyword]:
            return ()
        end = next((i for i, w in enumerate(rest[1:], 1) if w in RESERVED or w.startswith("work=")), len(rest))
        found = tuple(rest[1:end])
        if not found:
            raise self.error(f"at least one name after '{keyword}'")
        del rest[:end]
        return found if keyword == "after" else tuple(map(self.name, found))

    def check_derived(self, schedule: Schedule) -> None:
        right = [" ".join(line.split()) for line, _ in schedule_lines(schedule)]
        right = [line for line in right if line.startswith(("live ", "peak "))]
        lines = self.text.splitlines()
        if len(self.derived) != len(right):
            raise self.error(
                f"no live or peak lines, or all {len(right)}: one live line a region, one peak line a counted tier; "
                f"there are {len(self.derived)}"
            )
        for (number, found), expected in zip(self.derived, right, strict=True):
            if found != expected:
                raise ScheduleSyntaxError(number, lines[number - 1], f"{expected!r}, which is what the ops above hold")


def parse_event(event: str) -> tuple[str, str, str]:
    """(kind, value, region) of `read(l0)@fwd/l0`; the region is empty when the name leaves it out."""
    match = _EVENT.fullmatch(event)
    if not match:
        return "", event, ""
    return match[1], match[2], match[3] or ""
