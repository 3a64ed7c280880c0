"""Rows for people, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zcompiler.cli.doctor.judge.all import Groups, usable

STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def report(groups: Groups, console: Console) -> None:
    """A line or two for each row, what to do underneath, and the whole in a sentence."""
    width = max(len(row.about) for rows in groups.values() for row in rows)
    for title, rows in groups.items():
        console.print(Text(title, style="bold"), soft_wrap=True)
        grid = Table.grid(padding=(0, 1))
        grid.add_column(min_width=len("problem"))
        grid.add_column(min_width=width)
        grid.add_column()
        for row in rows:
            grid.add_row(Text(row.level, style=STYLES[row.level]), row.about, Text(row.said))
            if row.remedy:
                grid.add_row("", "", Text(f"-> {row.remedy}", style="cyan"))
        console.print(grid)
        console.print()
    counts = [sum(row.level == level for rows in groups.values() for row in rows) for level in ("problem", "note")]
    texts = [f"{n} {what}{'s' if n > 1 else ''}" for n, what in zip(counts, ("problem", "note"), strict=True) if n]
    said = "zinf works here" if usable(groups) else "zinf does not work here until the problems are mended"
    console.print(said + (f" ({', '.join(texts)})." if texts else "."), highlight=False)


def as_json(groups: Groups) -> str:
    rows = {title: [asdict(row) for row in rows] for title, rows in groups.items()}
    return json.dumps({"usable": usable(groups), "groups": rows}, indent=1)
