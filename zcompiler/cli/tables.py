"""The console and the tables of `zinf diff` and `zinf check`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Where output goes to a file or a log there is no width to keep to, and a wrapped line is hard to search.
_UNBOUNDED = 1000


def new_console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False)


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> None:
    """All columns but the first and the last are right-aligned numbers."""
    table = Table(box=SIMPLE, pad_edge=False)
    for i, name in enumerate(columns):
        # On a narrow terminal the names give way, never the numbers.
        number = 0 < i < len(columns) - 1
        table.add_column(name, justify="right" if number else "left", no_wrap=i > 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
