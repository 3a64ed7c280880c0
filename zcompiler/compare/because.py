"""Why a metric rose: the op that is behind it, found by looking at both schedules where they differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zcompiler.compare.difference import Match, op_label
from zcompiler.compare.metrics import Metric, Side
from zcompiler.compare.numbers import duration, size
from zcompiler.compare.sides import Compared
from zcompiler.compare.times import reference_machines, timeline
from zcompiler.machine.machine import Machine
from zcompiler.schedule.memory import START, held_at, memory, peak
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.simulate.program import moved_bytes

_NAMED = 3


def because(metric: Metric, compared: Compared) -> str:
    """One line that names the op: for bytes the one that moves most more, for a peak the one that holds most and what
    it holds more, for exposed time the one that is waited for longer, for counts what is new. What was measured names
    no op."""
    match metric.kind:
        case "bytes":
            return _bytes(metric.of, compared)
        case "peak":
            return _peak(metric.of, metric.schedule, compared)
        case "exposed":
            return _exposed(metric.of, compared)
        case "measured":
            return "it was run, and no schedule says this; on a machine that was busy, run it again"
        case _:
            return _count(metric.of, compared)


def _place(compared: Compared, name: str, region: str) -> str:
    return region if len(compared.new.schedules) == 1 else f"{region} of {name}"


def _bytes(lane: str, compared: Compared) -> str:
    found: list[tuple[int, str]] = []
    for name, match in compared.matches.items():
        for before, after in _paired(match):
            was = moved_bytes(match.old, before[1]) if before and _moves(before[1], lane) else 0
            if after is None or not _moves(after[1], lane):
                continue
            more = moved_bytes(match.new, after[1]) - was
            label = f"{op_label(after[1])} in {_place(compared, name, after[0].name)}"
            found.append((more, f"{label} moves {size(more + was)}, was {size(was)}" if was else f"{label} {_NEW}"))
    for name in _new(compared):
        schedule = compared.new.schedules[name]
        found += [
            (moved_bytes(schedule, op), f"{op_label(op)} in {region.name} of {name} {_NEW}")
            for region, op in schedule.ops()
            if _moves(op, lane)
        ]
    return _most([one for one in found if one[0] > 0])


_NEW = "was not there before"


def _moves(op: Op, lane: str) -> bool:
    return op.lane == lane and op.kind not in ("run", "release")


def _most(found: list[tuple[int, str]]) -> str:
    found = sorted(found, key=lambda one: -one[0])
    more = found[1:]
    rest = f"; and {len(more)} more, {size(sum(n for n, _ in more))} together" if more else ""
    return f"{found[0][1]}{rest}" if found else "in no single op"


def _peak(tier: str, name: str, compared: Compared) -> str:
    new = compared.new.schedules[name]
    where = peak(new)[tier][1]
    match = compared.matches.get(name)
    if match is None:
        return f"at {where}; the schedule {name} {_NEW}"
    if where == START:
        before, after = _held(match.old, tier, -1), _held(match.new, tier, -1)
    else:
        at = int(np.argmax(memory(match.new).during[tier]))
        then = next(i for i, j in match.pairs if j == at)
        if then is None:
            used = memory(match.old).during.get(tier)
            then = int(np.argmax(used)) if used is not None and len(used) else -1
        before, after = _held(match.old, tier, then), _held(match.new, tier, at)
    more = Counter({place: n - before.get(place, (0, ""))[0] for place, (n, _) in after.items()})
    grown = [(place, n) for place, n in more.most_common() if n > 0]
    shown = ", ".join(f"{place} (+{size(n)}{after[place][1]})" for place, n in grown[:_NAMED])
    rest = f" and {len(grown) - _NAMED} more" if len(grown) > _NAMED else ""
    return f"at {where}, held more: {shown}{rest}"


def _held(schedule: Schedule, tier: str, at: int) -> dict[str, tuple[int, str]]:
    """What the tier holds while op `at` runs, temporaries included (-1: before the first): bytes and who made it."""
    ops = list(schedule.ops())
    copies, work = held_at(schedule, tier, at)
    found = {}
    for copy in copies:
        made = ops[copy.maker] if copy.maker >= 0 else None
        by = f", by {op_label(made[1])} in {made[0].name}" if made else ""
        found[f"{copy.place.value}:{copy.place.form}"] = (copy.nbytes, by)
    return found | ({"temporaries": (work, "")} if work else {})


def _exposed(name: str, compared: Compared) -> str:
    machine = next(m for m in reference_machines() if m.name == name)
    found: list[tuple[float, str]] = []
    for of, match in compared.matches.items():
        before, after = (_waits(side, of, machine) for side in (compared.old, compared.new))
        past = _pasts(match)
        for i, j in match.pairs:
            if j is not None and j in after:
                was = before[i] if i is not None else 0.0
                region, op = past.ops[j]
                label = f"{op_label(op)} in {_place(compared, of, region.name)}{past.of(j)}"
                found.append(
                    (after[j] - was, f"computing waits {duration(after[j])} (was {duration(was)}) for {label}")
                )
    found += [(1.0, f"the schedule {of} {_NEW}") for of in _new(compared)]
    more, text = max(found, key=lambda one: one[0], default=(0.0, ""))
    return text if more > 0 else "in no single op"


@dataclass(frozen=True, slots=True)
class _Past:
    """The ops of the new schedule, and what has changed about them, by issue index."""

    ops: Sequence[tuple[Region, Op]]
    changed: Mapping[int, str]

    def of(self, j: int) -> str:
        """The past of an op, or that of what its lane does before it: whatever is first."""
        if j in self.changed:
            return f", which {self.changed[j]}"
        lane = self.ops[j][1].lane
        first = next((k for k in range(j - 1, -1, -1) if k in self.changed and self.ops[k][1].lane == lane), None)
        if first is None:
            return ""
        region, op = self.ops[first]
        return f", behind {op_label(op)} in {region.name}, which {self.changed[first]}"


def _pasts(match: Match) -> _Past:
    old, new = list(match.old.ops()), list(match.new.ops())
    changed = {}
    for i, j in match.pairs:
        if j is None or new[j][1].kind == "release":
            continue
        if i is None:
            changed[j] = _NEW
        elif old[i][0].name != new[j][0].name:
            changed[j] = f"stood in {old[i][0].name} before"
        elif new[j][1].kind != "run" and moved_bytes(match.old, old[i][1]) < moved_bytes(match.new, new[j][1]):
            changed[j] = f"moved {size(moved_bytes(match.old, old[i][1]))} before"
    return _Past(new, changed)


def _waits(side: Side, of: str, machine: Machine) -> defaultdict[int, float]:
    """Seconds that computing waited for each op, by issue index."""
    found: defaultdict[int, float] = defaultdict(float)
    for wait in timeline(side.schedules[of], machine, side.works.get(of, {})).waits:
        found[wait.cause] += wait.seconds
    return found


def _count(what: str, compared: Compared) -> str:
    if what == "compiled":
        return "regions that were equal to others no longer are, or new ones are there"
    new = _new(compared)
    found = [f"{what[:-1] if what == 'graphs' else 'schedule'} {name}" for name in new]
    if what != "graphs":
        for name, match in compared.matches.items():
            if what == "regions":
                there = {r.name for r in match.old.regions}
                found += [_place(compared, name, r.name) for r in match.new.regions if r.name not in there]
            else:
                runs = [
                    after for before, after in _paired(match) if before is None and after and after[1].kind == "run"
                ]
                found += [f"{op_label(op)} in {_place(compared, name, region.name)}" for region, op in runs]
    rest = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{rest} {_NEW}" if found else "in no single one"


def _new(compared: Compared) -> list[str]:
    return [name for name in compared.new.schedules if name not in compared.matches]


def _paired(match: Match) -> Iterator[tuple[tuple[Region, Op] | None, tuple[Region, Op] | None]]:
    old, new = list(match.old.ops()), list(match.new.ops())
    for i, j in match.pairs:
        yield (None if i is None else old[i]), (None if j is None else new[j])
