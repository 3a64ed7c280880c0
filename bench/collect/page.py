"""The generated part of a page: what stands between two comments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.collect.pictures import TITLES, draw
from bench.collect.runs import Line
from bench.collect.table import HEADINGS, rows
from zcompiler.errors import BadInput

START, END = "<!-- measured by make bench -->\n", "<!-- end of measured by make bench -->"
FOLDER = "bench"  # of the pictures, beside the page


def write_page(lines: Mapping[str, Sequence[Line]], file: Path) -> None:
    """Write table and pictures between START and END, whatever stood there. BadInput where these are not in the file
    once each; nothing is written then."""
    head, tail = _around(file)
    shown = draw(lines, file.parent / FOLDER)
    parts = [_table([HEADINGS, ["---"] * len(HEADINGS), *(row.cells() for row in rows(lines))]), *_origins(lines)]
    parts += [f"![{TITLES[name]}]({FOLDER}/{name})\n" for name in shown]
    body = "\n".join(["", *parts, ""]) if lines else "\n(Not measured yet.)\n\n"
    file.write_text(f"{head}{START}{body}{END}{tail}", encoding="utf-8")


def _around(file: Path) -> tuple[str, str]:
    text = file.read_text(encoding="utf-8")
    head, start, rest = text.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end or text.count(START) != 1 or text.count(END) != 1:
        raise BadInput(f"{file}: the lines {START.strip()!r} and {END!r} have to be there, once each and in this order")
    return head, tail


def _table(lines: Iterable[Sequence[str]]) -> str:
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in escaped)


def _origins(lines: Mapping[str, Sequence[Line]]) -> list[str]:
    """A line for each machine, commit and day, with what was measured there where it was not all."""
    found: dict[str, list[str]] = {}
    for name, own in lines.items():
        found.setdefault(_origin(own[-1]), []).append(name)
    return [f"{', '.join(names)}: {origin}\n" if len(found) > 1 else f"{origin}\n" for origin, names in found.items()]


def _origin(line: Line) -> str:
    commit, plus, changed = line["commit"].partition("+")
    memory = f"{line['memory_bytes'] / (1 << 30):.0f} GiB"
    machine = f"{line['cpu']}, {line['cores']} cores, {memory}, torch {line['torch']}"
    return f"{machine}; commit {commit[:9]}{plus}{changed}, {line['date']}."
