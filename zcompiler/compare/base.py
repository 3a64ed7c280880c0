"""A base: what a step costs and the schedules that say so, in one JSON file to check in and to compare with later."""

from __future__ import annotations

import json
from typing import Any

from zcompiler.compare.metrics import THOUSAND, Metric, Side, measure
from zcompiler.compare.numbers import shown
from zcompiler.compare.works import format_work, parse_work
from zcompiler.errors import BadInput
from zcompiler.machine.work import Work
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.text import ScheduleSyntaxError, parse_schedule, print_schedule
from zcompiler.schedule.verify import verify
from zcompiler.schedule.words import UPDATE_LANE

VERSION = 1
_KEY = "zinf-base"
# As people read them. Times are simulated again when compared, so that a release of zinf which prices differently
# changes both sides.
_SHOWN = ("exposed", "step", "measured")


def format_base(side: Side) -> str:
    """The text of a base: keys sorted, schedules line by line, so that its own diff can be read.

    The metrics stand there for people; they are counted anew from the schedules when a base is read.
    """
    base: dict[str, Any] = {_KEY: VERSION, "metrics": _metrics(measure(side))}
    if side.works:
        base["works"] = {of: {n: format_work(work) for n, work in works.items()} for of, works in side.works.items()}
    base["schedules"] = {name: print_schedule(schedule).splitlines() for name, schedule in side.schedules.items()}
    return json.dumps(base, indent=1, sort_keys=True) + "\n"


def parse_base(text: str, where: str) -> Side:
    """What `format_base` wrote. BadInput for another version, for what is no base, and where a number that follows
    from the schedules is not the one that stands there (a merge that went wrong)."""
    try:
        base = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: no base: it is not JSON ({error})") from error
    if not isinstance(base, dict) or _KEY not in base:
        raise BadInput(f'{where}: no base: it has no "{_KEY}"; `zinf check NEW --against {where} --update` writes one')
    if base[_KEY] != VERSION:
        raise BadInput(
            f"{where}: a base of version {base[_KEY]!r}; this zinf reads {VERSION}: write it anew with --update"
        )
    schedules = base.get("schedules")
    lines_of = schedules if isinstance(schedules, dict) else {}
    if not lines_of or not all(isinstance(lines, list) for lines in lines_of.values()):
        raise BadInput(f'{where}: no base: "schedules" has to map names to lists of lines')
    stated = base.get("metrics")
    if not isinstance(stated, dict):
        raise BadInput(f'{where}: no base: "metrics" has to map names to figures')
    found = {n: _schedule(lines, f"{where}: {n}") for n, lines in lines_of.items()}
    works = _works(base.get("works", {}), found, where)
    side = Side(found, _compiled(stated), works, _measured(stated, where))
    right = _metrics(measure(side, ()))
    for key, value in right.items():
        if stated.get(key) != value:
            raise BadInput(
                f"{where}: says {key!r}: {stated.get(key)!r}, but its schedules {value!r}: write it anew with --update"
            )
    return side


def _schedule(lines: list[object], where: str) -> Schedule:
    try:
        schedule = parse_schedule("\n".join(map(str, lines)))
    except ScheduleSyntaxError as error:
        raise BadInput(f"{where}: {error}") from error
    problems = verify(schedule)
    if problems:
        raise BadInput(f"{where}: [{problems[0].rule}] {problems[0]}: write the base anew with --update")
    return schedule


def _works(stated: Any, schedules: dict[str, Schedule], where: str) -> dict[str, dict[str, Work]]:
    """Of none of the runs, or of all but those of updates, whose time is that of their bytes."""
    if not stated:
        return {}
    found: dict[str, dict[str, Work]] = {}
    for name, schedule in schedules.items():
        for region, op in schedule.ops():
            if op.kind == "run" and op.lane != UPDATE_LANE:
                try:
                    found.setdefault(name, {})[op.value] = parse_work(stated[name][op.value])
                except (LookupError, TypeError, AttributeError, ValueError) as error:
                    raise BadInput(
                        f'{where}: "works" does not say what run({op.value}) in {region.name} of {name} is ({error}): '
                        "write it anew with --update"
                    ) from error
    return found


def _compiled(metrics: dict[str, Any]) -> int | None:
    stated = metrics.get(str(Metric("counts", "compiled")))
    return stated if isinstance(stated, int) else None


def _measured(metrics: dict[str, Any], where: str) -> dict[str, int]:
    """Nothing but the text itself says these."""
    found = {}
    for key, value in metrics.items():
        kind, _, name = key.partition(" ")
        if kind == "measured":
            try:
                found[name] = round(float(value) * THOUSAND)
            except (TypeError, ValueError) as error:
                raise BadInput(f"{where}: {key!r} is {value!r}, not a number: write it anew with --update") from error
    return found


def _metrics(metrics: dict[Metric, int]) -> dict[str, int | str]:
    return {str(metric): _stated(metric, number) for metric, number in metrics.items()}


def _stated(metric: Metric, number: int) -> int | str:
    # Sizes exactly, as they are compared with what the schedules say.
    if metric.kind in ("bytes", "peak"):
        return format_bytes(number)
    return shown(metric, number) if metric.kind in _SHOWN else number
