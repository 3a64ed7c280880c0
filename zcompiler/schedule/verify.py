"""Says what is wrong with a schedule, rule by rule. `docs/schedule.md` has each rule with an example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zcompiler.schedule.flow import Copy, Flow, Place, Step, may_stay, rest_place
from zcompiler.schedule.memory import event_name, memory
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.text import parse_event
from zcompiler.schedule.waits import Events, name_waits
from zcompiler.schedule.words import COMM_KINDS, COMM_LANE, FORM_OF, FORMS, MOVES, RUN_LANES, STORE

RULES = (
    "well-formed",
    "names-resolve",
    "waits-earlier",
    "waits-canonical",
    "operand-live",
    "use-after-release",
    "release-live",
    "release-last",
    "made-once",
    "read-after-write",
    "lost-write",
    "leak",
    "budget",
    "comm-world",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule. `region` is empty when it concerns the whole schedule, `op` (index in the region) -1 when no
    single line is to blame."""

    rule: str
    region: str
    op: int
    message: str

    def __str__(self) -> str:
        return f"{self.region}: {self.message}" if self.region else self.message


def verify(schedule: Schedule) -> list[Problem]:
    """Every broken rule, in issue order; empty for a schedule that may be executed. O(ops)."""
    problems = list(_names(schedule))
    if sum(t.compute for t in schedule.tiers) != 1:
        return [*problems, Problem("well-formed", "", -1, "exactly one tier must be marked compute")]
    places = [(region.name, i) for region in schedule.regions for i in range(len(region.ops))]
    for at, rule, message in [*_walk(schedule), *_budget(schedule)]:
        region, op = places[at] if at >= 0 else ("", -1)
        problems.append(Problem(rule, region, op, message))
    order = {place: i for i, place in enumerate(places)}
    return sorted(problems, key=lambda p: order.get((p.region, p.op), -1 if not p.region else len(order)))


def _names(schedule: Schedule) -> Iterator[Problem]:
    values = {v.name for v in schedule.values}
    tiers = {t.name for t in schedule.tiers}
    regions = {r.name for r in schedule.regions}
    for what, names, unique in (
        ("value", [v.name for v in schedule.values], values),
        ("tier", [t.name for t in schedule.tiers], tiers),
        ("region", [r.name for r in schedule.regions], regions),
    ):
        if len(names) != len(unique):
            twice = sorted(n for n in unique if names.count(n) > 1)
            yield Problem("names-resolve", "", -1, f"{what} {', '.join(twice)} is declared twice")
    for value in schedule.values:
        if value.home is not None and value.home not in tiers:
            yield Problem("names-resolve", "", -1, f"{value.name} has its home in {value.home}, which is no tier here")
        if value.shard is not None and not value.nbytes <= value.shard * schedule.world:
            message = (
                f"{value.name} is {format_bytes(value.nbytes)}, but {schedule.world} shards of "
                f"{format_bytes(value.shard)} hold less"
            )
            yield Problem("well-formed", "", -1, message)
    for region in schedule.regions:
        for i, op in enumerate(region.ops):
            used = [*op.reads, *op.writes] if op.kind == "run" else [op.value]
            unknown = [f"value {n}" for n in dict.fromkeys(used) if n not in values]
            unknown += [f"tier {t}" for t in (op.src, op.dst) if t and t not in tiers]
            if op.for_region and op.for_region not in regions:
                unknown.append(f"region {op.for_region}")
            if unknown:
                yield Problem("names-resolve", region.name, i, f"{op.kind} {op.value}: no {', no '.join(unknown)} here")
            malformed = _malformed(op)
            if malformed:
                yield Problem("well-formed", region.name, i, f"{op.kind} {op.value}: {malformed}")


def _malformed(op: Op) -> str:
    if op.kind == "release":
        return "" if op.form in FORMS and op.src else "needs a form (full or shard) and the tier it is freed from"
    if op.form != FORM_OF.get(op.kind):
        return f"form is {op.form}; it must be {FORM_OF.get(op.kind)}"
    if op.kind == "run":
        return "" if op.lane in RUN_LANES else f"runs on lane {op.lane}; it must be {' or '.join(RUN_LANES)}"
    if op.kind in COMM_KINDS:
        return "" if op.lane == COMM_LANE else f"is on lane {op.lane}; it must be {COMM_LANE}"
    move = next(m for m in MOVES if m.kind == op.kind)
    if (op.lane, op.src, op.dst) != move[1:]:
        return f"is {op.src}->{op.dst} on lane {op.lane}; it must be {move.src}->{move.dst} on lane {move.lane}"
    return ""


def _walk(schedule: Schedule) -> Iterator[tuple[int, str, str]]:
    ops = list(schedule.ops())
    flow = Flow(schedule)
    events = Events()
    for step in flow.steps():
        at = step.index
        found = _waits(ops, step, events) + _uses(flow, step) + _release(flow, step)
        if step.op.kind in COMM_KINDS and schedule.world == 1:
            found.append(("comm-world", f"{step.op.kind} {step.op.value}: a world of 1 has nobody to talk to"))
        if step.twice:
            message = f"{step.op.kind} {step.op.value}: {step.twice.place} is live already; release it first"
            found.append(("made-once", message))
        if step.stale:
            message = f"{step.op.kind} {step.op.value}: {step.stale.place} was written and is not yet back at home"
            found.append(("read-after-write", message))
        events.add(at, step.region, step.op)
        for rule, message in found:
            yield at, rule, message
    for copy in flow.live.values():
        if copy.place.tier != STORE and not may_stay(schedule, copy, flow.value(copy.place.value)):
            made = f"made by {event_name(*ops[copy.maker])}" if copy.maker >= 0 else "there from the start"
            message = f"{copy.place} ({format_bytes(copy.nbytes)}), {made}, is never released"
            yield max(copy.maker, -1), "leak", message


def _waits(ops: list[tuple[Region, Op]], step: Step, events: Events) -> list[tuple[str, str]]:
    op = step.op
    expected = name_waits(ops, step.index, step.deps)
    if op.after == expected:
        return []
    label = f"{op.kind} {op.value}"
    found: list[tuple[str, str]] = []
    for event in op.after:
        at = events.find(event, step.region)
        if at is None:
            found.append(("waits-earlier", f"{label} waits for {event}, which is no earlier op"))
        elif event not in expected:
            why = "the same lane is in order anyway" if ops[at][1].lane == op.lane else "it makes nothing used here"
            found.append(("waits-canonical", f"{label} waits for {event} needlessly: {why}"))
    for event in expected:
        if event in op.after:
            continue
        if op.kind == "release":
            found.append(("release-last", f"{label} must wait for {event}, which uses what it frees"))
        elif op.kind == "read" and parse_event(event)[:2] == ("write", op.value):
            found.append(("read-after-write", f"{label} must wait for {event}, the last write of its value"))
        else:
            found.append(("waits-canonical", f"{label} must wait for {event}"))
    if not found:
        found.append(("waits-canonical", f"{label}: waits must be in issue order: {' '.join(expected)}"))
    return found


def _uses(flow: Flow, step: Step) -> list[tuple[str, str]]:
    found = []
    for place, copy in step.uses:
        if copy or place.value not in flow.values:
            continue
        label = f"{step.op.kind} {step.op.value} uses {place}"
        if place in flow.ever:
            found.append(("use-after-release", f"{label}, which was released before"))
        else:
            found.append(("operand-live", f"{label}, which is not there{_elsewhere(flow, place)}"))
    return found


def _elsewhere(flow: Flow, place: Place) -> str:
    others = [str(p) for p in flow.live if p.value == place.value]
    return f" (live: {', '.join(others)})" if others else ""


def _release(flow: Flow, step: Step) -> list[tuple[str, str]]:
    if step.frees is None or step.frees[0].value not in flow.values:
        return []
    place, copy = step.frees
    if copy is None:
        return [("release-live", f"release {place} frees nothing: it is not live{_elsewhere(flow, place)}")]
    if copy.dirty:
        return [("lost-write", f"release {place} loses what {_last_writer(flow, copy)} wrote: write it home first")]
    rests = place == rest_place(flow.schedule, flow.value(place.value))
    if rests and copy.kind in ("param", "state", "input"):
        return [("release-live", f"release {place} frees the only copy: {copy.kind}s stay where they rest")]
    return []


def _last_writer(flow: Flow, copy: Copy) -> str:
    ops = list(flow.schedule.ops())
    return event_name(*ops[copy.producer]) if copy.producer >= 0 else "nobody"


def _budget(schedule: Schedule) -> Iterator[tuple[int, str, str]]:
    used = memory(schedule)
    ops = list(schedule.ops())
    for tier in schedule.tiers:
        if tier.budget is None or tier.name not in used.start:
            continue
        limit = format_bytes(tier.budget)
        if used.start[tier.name] > tier.budget:
            held = used.start[tier.name]
            over = format_bytes(held - tier.budget)
            message = (
                f"what rests in {tier.name} takes {format_bytes(held)}; the budget is {limit} ({over} over). "
                f"Give values another home or raise the memory of {tier.name} to {format_bytes(held)}."
            )
            yield -1, "budget", message
        over_at = (used.during[tier.name] > tier.budget).nonzero()[0].tolist()
        for at in over_at:
            before = int(used.during[tier.name][at - 1]) if at else used.start[tier.name]
            held = int(used.during[tier.name][at])
            if held <= before and before > tier.budget:
                continue  # one line for each rise
            op = ops[at][1]
            yield (
                at,
                "budget",
                f"{op.kind} {op.value} raises {tier.name} to {format_bytes(held)}; the budget is {limit} "
                f"({format_bytes(held - tier.budget)} over). {_remedy(op)} the memory of {tier.name} "
                f"to {format_bytes(held)}.",
            )


def _remedy(op: Op) -> str:
    return "Lower the bytes that prefetch-reads may be ahead or raise" if op.for_region else "Raise"


def comm_difference(a: Schedule, b: Schedule) -> str | None:
    """How the collectives of two ranks' schedules differ, or None: every rank must issue the same ones in one order."""
    ours, theirs = _collectives(a), _collectives(b)
    for i, (x, y) in enumerate(zip(ours, theirs, strict=False)):
        if x != y:
            return f"collective {i} is {x} on rank {a.rank} and {y} on rank {b.rank}"
    if len(ours) != len(theirs):
        return f"rank {a.rank} issues {len(ours)} collectives, rank {b.rank} {len(theirs)}"
    return None


def same_comm(a: Schedule, b: Schedule) -> bool:
    """Whether two ranks' schedules issue the same collectives in the same order (see `comm_difference`)."""
    return comm_difference(a, b) is None


def _collectives(schedule: Schedule) -> list[str]:
    sizes = {v.name: v.nbytes for v in schedule.values}
    return [
        f"{op.kind} {op.value} ({format_bytes(sizes.get(op.value, 0))}) in {region.name}"
        for region, op in schedule.ops()
        if op.kind in COMM_KINDS
    ]
