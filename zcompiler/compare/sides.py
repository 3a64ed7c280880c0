"""Two sides joined: which schedule is which, and how each pair differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zcompiler.compare.difference import Match, compare
from zcompiler.compare.metrics import Metric, Side, measure, phases


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """`old` with its schedules under the names that `new` gives them; `matches` of those that both have, by name.

    `renamed`: schedules that have another name in the new. `before` and `after`: the metrics of both.
    """

    old: Side
    new: Side
    matches: Mapping[str, Match]
    renamed: Mapping[str, str]
    before: Mapping[Metric, int]
    after: Mapping[Metric, int]

    @property
    def equal(self) -> bool:
        """Whether they say the same in whatever words."""
        same_names = self.old.schedules.keys() == self.new.schedules.keys()
        return same_names and not any(match.changes for match in self.matches.values())

    @property
    def metrics(self) -> list[Metric]:
        """Those that either side has, in the order of the table."""
        order = {"bytes": 0, "peak": 1, "exposed": 2, "step": 3, "counts": 4, "measured": 5}
        return sorted({*self.before, *self.after}, key=lambda m: (order[m.kind], m.schedule, m.of))


def compare_sides(old: Side, new: Side) -> Compared:
    """Pairs schedules by name, what is left by what they do (training, inference, update) and order, and compares
    each pair."""
    names = {name: name for name in old.schedules if name in new.schedules}
    left = {name: s for name, s in new.schedules.items() if name not in names}
    for name, schedule in old.schedules.items():
        if name not in names:
            other = next((n for n, s in left.items() if phases(s) == phases(schedule)), None)
            if other is not None:
                names[name] = other
                del left[other]
    alone = [name for name in old.schedules if name not in names]
    if len(alone) == len(left) == 1:
        names[alone[0]] = left.popitem()[0]
    schedules = {names.get(name, name): schedule for name, schedule in old.schedules.items()}
    # Times that are estimated on one side only would differ for that alone.
    if not (old.works and new.works):
        old, new = replace(old, works={}), replace(new, works={})
    old = replace(old, schedules=schedules, works={names.get(name, name): works for name, works in old.works.items()})
    matches = {name: compare(old.schedules[name], new.schedules[name]) for name in names.values()}
    renamed = {a: b for a, b in names.items() if a != b}
    before, after = measure(old), measure(new)
    for side, others in ((before, after), (after, before)):
        # What only one side moves or holds, the other moves or holds none of; a time or a count may be unknown.
        side.update((m, 0) for m in others if m.kind in ("bytes", "peak") and m not in side)
    return Compared(old, new, matches, renamed, before, after)
