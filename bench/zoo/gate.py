"""What is now beside the base: a table, and a line for each figure that is worse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.zoo.base import Base, versions, write_base
from bench.zoo.described import Case
from zcompiler.compare.gate import BETTER, WORSE, Finding, judge
from zcompiler.compare.metrics import Metric, Side, measure
from zcompiler.compare.numbers import change, duration, plural, size
from zcompiler.compare.sides import compare_sides
from zcompiler.errors import ZinfError
from zcompiler.options import MACHINES

HEADINGS = ("model", "limit", "read", "written", "peak", *(f"waits, {name}" for name in MACHINES), "")
WIDTH = 120  # of the table, wherever it goes

Found = Iterable[tuple[Case, Side | ZinfError]]


def judged(zoo: Found, base: Base) -> bool:
    """Print each case beside the base; whether none is worse. What could not be planned is."""
    table, lines, better = _table(), list[str](), 0
    for case, found in zoo:
        if isinstance(found, ZinfError):
            lines.append(_refused(case, found))
            table.add_row(*case, *[""] * (len(HEADINGS) - 3), Text("refused", "bold red"))
            continue
        compared = compare_sides(base.sides[case], found)
        findings = judge(compared)
        worse = [one for one in findings if one.verdict == WORSE]
        lines += [f"{' '.join(case)}: {_line(one)}" for one in worse]
        gained = not worse and any(one.verdict == BETTER for one in findings)
        better += gained
        verdict = Text("worse", "bold red") if worse else Text("better", "green") if gained else Text("")
        table.add_row(*case, *_figures(compared.after), verdict)
    console = Console(soft_wrap=True, width=WIDTH)
    console.print(table)
    _told(console, lines)
    if lines and base.made_with != versions():
        console.print(f"The base is of {_named(base.made_with)}, this is {_named(versions())}: see docs/zoo.md.")
    if better and not lines:
        console.print(f"Better: {plural(better, 'case')}. To keep it so: python -m bench.zoo --update")
    return not lines


def updated(zoo: Found, folder: Path) -> bool:
    """Make what is now the base in `folder`, unless something could not be planned; whether that was done."""
    table, lines, sides = _table(), list[str](), dict[Case, Side]()
    for case, found in zoo:
        if isinstance(found, ZinfError):
            lines.append(_refused(case, found))
            continue
        sides[case] = found
        table.add_row(*case, *_figures(measure(found)), "")
    console = Console(soft_wrap=True, width=WIDTH)
    console.print(table)
    _told(console, lines)
    if not lines:
        console.print(f"{plural(len(write_base(sides, folder)), 'case')} of {len(sides)} changed")
    return not lines


def _table() -> Table:
    table = Table(box=None)
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i in (0, 1, len(HEADINGS) - 1) else "right", no_wrap=True)
    return table


def _told(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(line, "red"))


def _refused(case: Case, error: ZinfError) -> str:
    return f"{' '.join(case)}: {error}"


def _line(found: Finding) -> str:
    return f"{found.metric} {change(found.metric, found.before, found.after)}: {found.because}"


def _figures(metrics: Mapping[Metric, int]) -> list[str]:
    moved = [size(metrics.get(Metric("bytes", lane), 0)) for lane in ("nvme_read", "nvme_write")]
    most = max(number for metric, number in metrics.items() if metric.kind == "peak")
    waits = [metrics.get(Metric("exposed", name)) for name in MACHINES]
    return [*moved, size(most), *("-" if ns is None else duration(ns / 1e9) for ns in waits)]


def _named(made_with: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in made_with.items())
