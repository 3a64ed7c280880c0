"""An explanation as words and tables that fit in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zcompiler.advise.explained import Cause, Change, Explained, Group, Outcome, Peak, StepTime
from zcompiler.compare.numbers import plural, size
from zcompiler.schedule.sizes import UNITS

WIDTH = 80
_CAUSES = 3


def as_text(found: Explained) -> str:
    """Without colours."""
    console = Console(file=StringIO(), width=WIDTH, highlight=False, color_system=None)
    show(found, console)
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def show(found: Explained, console: Console) -> None:
    """Print it."""
    console.print(Text(found.title, "bold"))
    for title, parts in _sections(found):
        shown = list(parts)
        if shown:
            console.print()
            console.print(Text(title, "bold"))
            for part in shown:
                console.print(Padding(part, (0, 0, 0, 2)))


def _sections(found: Explained) -> Iterator[tuple[str, Iterable[RenderableType]]]:
    if found.refused:
        yield "It does not fit", [Text(found.refused)]
    if found.groups:
        yield "Where states rest", _homes(found)
    yield "Why", [_item(reason) for reason in found.reasons]
    if found.peaks:
        yield "What the peaks are made of", _peaks(found.peaks)
    if found.step is not None:
        yield "Where the time goes", _step(found.step)
    yield _title_of_changes(found), _changes(found)
    yield "What may help (this was not planned again)", [_item(hint) for hint in found.hints]
    yield "What zinf would warn of", [_item(note) for note in found.notes]


def _item(words: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row("-", Text(words))
    return grid


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(columns):
        right = i in numbers
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _homes(found: Explained) -> Iterator[RenderableType]:
    yield _groups(found.groups)
    if found.activations:
        places = ", ".join(f"{size(n)} in {home}" for home, n in found.activations.items())
        yield Text(f"Activations between forward and backward: {places}.")


def _groups(groups: Sequence[Group]) -> RenderableType:
    kinds = [kind for kind in ("params", "grads", "optimizer") if any(kind in group.homes for group in groups)]
    rows = []
    for group in groups:
        cells = [f"{group.homes[kind]} {_about(group.sizes[kind])}" if kind in group.homes else "-" for kind in kinds]
        rows.append((_range(group.units), str(len(group.units)), *cells))
    return _table(("units", "count", *kinds), rows, range(1, 2 + len(kinds)))


def _range(units: Sequence[str]) -> str:
    return units[0] if len(units) == 1 else f"{units[0]} to {units[-1]}"


def _peaks(peaks: Sequence[Peak]) -> Iterator[RenderableType]:
    most = {tier: max((p for p in peaks if p.tier == tier), key=lambda p: p.nbytes) for tier in {p.tier for p in peaks}}
    for peak in peaks:
        limit = f" of {size(peak.budget)}" if peak.budget is not None else ""
        yield _item(f"{peak.tier} in {peak.schedule}: {size(peak.nbytes)}{limit}, at {peak.at}")
        if most[peak.tier] is peak and peak.nbytes:
            yield Padding(_holdings(peak), (0, 0, 0, 2))


def _holdings(peak: Peak) -> RenderableType:
    rows = []
    for holding in peak.holdings:
        names = ", ".join(f"{name} {size(n)}" for name, n in holding.largest)
        more = holding.count - len(holding.largest)
        more_of = f" and {more} more" if holding.largest and more > 0 else ""
        part = f"{100 * holding.nbytes / peak.nbytes:.0f} %"
        rows.append((holding.kind, size(holding.nbytes), part, f"{names}{more_of}"))
    return _table(("held", "", "", "largest"), rows, (1, 2))


def _step(step: StepTime) -> Iterator[RenderableType]:
    part = f" ({100 * step.waited / step.seconds:.0f} %)" if step.seconds and step.waited else ""
    phases = ", ".join(f"{name} {_time(seconds)}" for name, seconds in step.phases)
    yield Text(f"A step takes {_time(step.seconds)} on {step.machine}, of which computing waits "
               f"{_time(step.waited)}{part}.")  # fmt: skip
    if step.estimated:
        yield Text("A text has no FLOPs: compute is an estimate from its bytes and shapes.")
    if len(step.phases) > 1:
        yield Text(f"Phases: {phases}.")
    if step.in_place:
        yield Text(f"The optimizer updates what is in memory in {_time(step.in_place)} of it.")
    rows = []
    for lane in step.lanes:
        moved = step.moved.get(lane.lane)
        times = (lane.busy, lane.exposed, lane.at_end, lane.hidden)
        rows.append((lane.lane, size(moved) if moved is not None else "", *map(_time, times)))
    yield _table(("lane", "moves", "busy", "exposed", "at end", "hidden"), rows, range(1, 6))
    for lane in step.lanes:
        for cause in lane.causes[:_CAUSES]:
            yield _item(_cause(cause))


def _cause(cause: Cause) -> str:
    if cause.count == 1:
        return f"{cause.what}: {_time(cause.seconds)} for {cause.longest}: {cause.why}"
    times = plural(cause.count, "wait")
    longest = f"the longest {_time(cause.longest_seconds)} for {cause.longest}"
    return f"{cause.what}: {_time(cause.seconds)} in {times}, {longest}: {cause.why}"


def _title_of_changes(found: Explained) -> str:
    return "What would make it fit" if found.refused else "What would help, by planning again"


def _changes(found: Explained) -> Iterator[RenderableType]:
    if found.now is None and not found.helpful:
        if found.others:
            yield Text(f"Nothing that was tried: {', '.join(change.what for change in found.others)}.")
        return
    rows: list[tuple[str, ...]] = []
    if found.now is not None and (found.helpful or found.others):
        rows.append(("as it is", *_outcome(found.now), ""))
    if not found.helpful and found.others:
        yield Text("Nothing that was tried makes a step shorter or smaller.")
    for change in (*found.helpful, *found.others):
        rows.append(_row(change, helps=change in found.helpful))
    if rows:
        columns = ("", "a step", "moves", "holds", "")
        yield _table(columns, rows, (1, 2, 3))
    if any(change.part != 1 for change in (*found.helpful, *found.others)):
        yield Text("Of a smaller batch, the time for a whole one is compared.")


def _row(change: Change, helps: bool) -> tuple[str, ...]:
    if change.after is None:
        return change.what, "", "", "", change.why
    verdict = "" if abs(change.gain) < 0.005 else f"{-change.gain:+.0%}"
    return change.what, *_outcome(change.after), verdict if helps else f"{verdict} no help".strip()


def _outcome(outcome: Outcome) -> tuple[str, str, str]:
    return _time(outcome.seconds), size(outcome.moved), size(outcome.peak)


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _about(nbytes: int) -> str:
    """Bytes in three digits, where there is a column for them."""
    unit, one = next((unit for unit in UNITS if nbytes >= unit[1]), UNITS[-1])
    number = nbytes / one
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
