"""Where states rest: units in the order of their use, neighbours with the same homes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from zcompiler.advise.explained import Group
from zcompiler.advise.names import whole
from zcompiler.schedule.flow import form_bytes, moved_form
from zcompiler.schedule.model import Schedule

_KINDS = {"param": "params", "grad": "grads", "state": "optimizer"}


def groups_of(schedules: Iterable[Schedule]) -> tuple[Group, ...]:
    """The groups of all units of these schedules; a unit that several of them know is that of the first."""
    homes: dict[str, dict[str, str]] = {}
    sizes: dict[str, Counter[str]] = {}
    for schedule in schedules:
        for unit, kind, home, nbytes in _resting(schedule, set(homes)):
            homes.setdefault(unit, {})[kind] = home
            sizes.setdefault(unit, Counter())[kind] += nbytes
    groups = []
    for found, units in groupby(homes, key=lambda unit: homes[unit]):
        names = tuple(units)
        total = {kind: sum(sizes[unit][kind] for unit in names) for kind in found}
        groups.append(Group(names, dict(found), total))
    return tuple(groups)


def activations_of(schedules: Iterable[Schedule]) -> dict[str, int]:
    """Bytes of what forward makes and backward reads, by where it rests in between."""
    found: dict[str, int] = {}
    for schedule in schedules:
        runs = [(region.phase, op) for region, op in schedule.ops() if op.kind == "run"]
        made = {name for phase, op in runs if phase == "fwd" for name in op.writes}
        saved = made & {name for phase, op in runs if phase == "bwd" for name in op.reads}
        for name in sorted(saved):
            if (value := schedule.value(name)).kind == "act":
                home = value.home or schedule.compute_tier.name
                found[home] = found.get(home, 0) + value.nbytes
    return found


def _resting(schedule: Schedule, known: set[str]) -> Iterator[tuple[str, str, str, int]]:
    """Unit, kind of state, home and bytes there."""
    compute = schedule.compute_tier.name
    for value in schedule.values:
        if value.kind in _KINDS:
            suffix = f":{value.kind}"
            unit = whole(value.name.removesuffix(suffix) if value.kind != "param" else value.name)
            if unit not in known:
                nbytes = form_bytes(value, moved_form(schedule, value))
                yield unit, _KINDS[value.kind], value.home or compute, nbytes
