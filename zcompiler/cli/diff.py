"""`zinf diff`: how two schedules, or two steps of several, differ, and what it costs."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from zcompiler.cli.tables import new_console, print_table
from zcompiler.compare.difference import ADDED, CHANGED, MOVED, REMOVED, Change
from zcompiler.compare.files import read_side
from zcompiler.compare.metrics import Side
from zcompiler.compare.numbers import change, plural, shown
from zcompiler.compare.sides import Compared, compare_sides
from zcompiler.schedule.text import print_schedule

_MARKS = {ADDED: ("+", "green"), REMOVED: ("-", "red"), MOVED: (">", "cyan"), CHANGED: ("~", "yellow")}
_EXAMPLES = 3


def diff(a: Path, b: Path, *, unified: bool = False, as_json: bool = False) -> int:
    """Print how they differ; 0 if they do not, else 1. BadInput for what cannot be read."""
    old, new = read_side([a]), read_side([b])
    if unified:
        text = "".join(_unified(old, new, a, b))
        typer.echo(text, nl=False)
        return 1 if text else 0
    compared = compare_sides(old, new)
    if as_json:
        typer.echo(json.dumps(_as_json(compared), indent=1))
    else:
        _show(new_console(), compared)
    return 0 if compared.equal else 1


def _unified(old: Side, new: Side, a: Path, b: Path) -> Iterator[str]:
    pairs = {name: name for name in (*old.schedules, *new.schedules)}
    if len(old.schedules) == len(new.schedules) == 1:
        pairs = {next(iter(old.schedules)): next(iter(new.schedules))}
    for before, after in pairs.items():
        left, right = _lines(old, before), _lines(new, after)
        yield from difflib.unified_diff(left, right, f"{a} ({before})", f"{b} ({after})")


def _lines(side: Side, name: str) -> list[str]:
    return print_schedule(side.schedules[name]).splitlines(keepends=True) if name in side.schedules else []


def _as_json(compared: Compared) -> dict[str, object]:
    return {
        "equal": compared.equal,
        "added": sorted(compared.new.schedules.keys() - compared.old.schedules.keys()),
        "removed": sorted(compared.old.schedules.keys() - compared.new.schedules.keys()),
        "schedules": {
            name: {
                "renamed": match.renamed,
                "changes": [
                    {"what": c.what, "how": c.how, "name": c.name, "before": c.before, "after": c.after}
                    for c in match.changes
                ],
            }
            for name, match in compared.matches.items()
        },
        "metrics": [
            {
                "kind": m.kind,
                "of": m.of,
                "schedule": m.schedule,
                "before": compared.before.get(m),
                "after": compared.after.get(m),
            }
            for m in compared.metrics
        ],
    }


def _show(console: Console, compared: Compared) -> None:
    for name in sorted(compared.old.schedules.keys() - compared.new.schedules.keys()):
        console.print(Text(f"- schedule {name}", "red"))
    for name in sorted(compared.new.schedules.keys() - compared.old.schedules.keys()):
        console.print(Text(f"+ schedule {name}", "green"))
    for name, match in compared.matches.items():
        counts = Counter(c.how for c in match.changes)
        said = ", ".join(f"{counts[how]} {how}" for how in _MARKS if counts[how]) or "no difference"
        console.print(Text(f"{name}: {said}", "bold"), soft_wrap=True)
        if match.renamed:
            examples = ", ".join(f"{a} is {b}" for a, b in list(match.renamed.items())[:_EXAMPLES])
            more = ", ..." if len(match.renamed) > _EXAMPLES else ""
            names = plural(len(match.renamed), "name")
            console.print(
                f"  {names} differ, which makes no difference: {examples}{more}", markup=False, soft_wrap=True
            )
        for one in match.changes:
            console.print(_line(one), soft_wrap=True)
    if compared.equal:
        same = all(compared.old.schedules[name] == compared.new.schedules[name] for name in compared.matches)
        console.print("Equal." if same else "Equal: only names or the order of the header differ, which mean nothing.")
        return
    rows = [
        (str(m), shown(m, before), shown(m, after), change(m, before, after))
        for m in compared.metrics
        if (before := compared.before.get(m)) != (after := compared.after.get(m))
    ]
    if rows:
        print_table(console, ("a step", "before", "after", "change"), rows)
    else:
        console.print("Bytes, peaks and times are the same.")
    if any(m.kind == "exposed" for m in compared.metrics):
        said = "Times are simulated."
        if not compared.new.works:
            said = "Times are simulated; a text has no FLOPs, so compute is an estimate from its bytes and shapes."
    else:
        said = "No times: a schedule breaks rules (`zinf opt FILE` shows them), or no machine has its lanes."
    console.print(said, soft_wrap=True)


def _line(one: Change) -> Text:
    mark, style = _MARKS[one.how]
    name = one.name if one.what == "op" else f"{one.what} {one.name}"
    if one.what == "op" and one.how in (ADDED, REMOVED):
        where = f" in {one.after or one.before}"
    elif one.before and one.after:
        where = f": {one.before} -> {one.after}"
    elif one.how == CHANGED:
        where = f": no longer {one.before}" if one.before else f": now {one.after}"
    else:
        where = f" {one.before or one.after}".rstrip()
    return Text(f"  {mark} {name}{where}", style)
