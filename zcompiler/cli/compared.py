"""How `zinf diff` and `zinf check` show numbers and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zcompiler.compare.metrics import Metric
from zcompiler.schedule.sizes import UNITS

# Where output goes to a file or a log there is no width to keep to, and a wrapped line is hard to search.
_UNBOUNDED = 1000


def new_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False)


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> None:
    """All columns but the first and the last are numbers."""
    table = Table(box=SIMPLE, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if 0 < i < len(columns) - 1 else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def shown(metric: Metric, number: int | None) -> str:
    """The number with its unit, as one reads it: `36.25 MiB`, `1.250 ms`."""
    if number is None:
        return "-"
    sign, size = "-" if number < 0 else "", abs(number)
    if metric.kind in ("bytes", "peak"):
        unit, one = next((unit for unit in UNITS if size >= unit[1]), UNITS[-1])
        return f"{sign}{size / one:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{sign}{size / 1e6:.3f} ms" if metric.kind in ("exposed", "step") else f"{number}"


def change(metric: Metric, before: int | None, after: int | None) -> str:
    """`+36 MiB (+1.2 %)`; empty where nothing changed or one of them is unknown."""
    if before is None or after is None or before == after:
        return ""
    sign = "+" if after > before else ""
    part = f" ({sign}{100 * (after - before) / before:.3g} %)" if before else ""
    return f"{sign}{shown(metric, after - before)}{part}"


def plural(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"
