"""What came of the systems: a table, where zinf is not the best in it, and whether it is as fast as it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bench.peers.rounds import Row
from zcompiler.cli.demo_report import loss_gap

DEEPSPEED = "deepspeed"  # what the names of its ways begin with
AIMS: Mapping[Fraction, float] = {Fraction(1): 2.5, Fraction(1, 4): 1.4}  # times as fast as DeepSpeed at that share
SAME = {"fp32": 1e-3, "bf16": 2e-2}  # relative difference of losses that rounding makes in so many steps
HEADINGS = (
    "system",
    "limit, GiB",
    "step, s",
    "× eager's",
    "× {against}'s",
    "peak, GiB",
    "read, GB a step",
    "written, GB a step",
    "losses differ by",
)
END = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Answer:
    """A ratio for bench.record.verdict; with neither bound it is only told."""

    question: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None


def headings(against: str) -> list[str]:
    return [heading.format(against=against) for heading in HEADINGS]


def cells(row: Row, reference: Row, against: Row) -> list[str]:
    """A line of the table. A row with an error has that instead of what was measured."""
    limit = f"{row.limit / 2**30:.2f}" if row.limit is not None else ""
    if row.error is not None:
        return [row.name, limit, *[""] * (len(HEADINGS) - 3), row.error]
    beside = f"{row.ratio / against.ratio:.2f}" if against.error is None else ""
    measured = (f"{row.median('seconds'):.2f}", f"{row.ratio:.2f}", beside, f"{row.peak / 2**30:.2f}")
    moved = (f"{row.median(way) / 1e9:.2f}" for way in ("read", "written"))
    return [row.name, limit, *measured, *moved, "" if row is reference else f"{gap(row, reference):.0e}"]


def gap(row: Row, reference: Row) -> float:
    """The largest relative difference of the losses of equal steps."""
    both = min(len(row.losses), len(reference.losses))
    return loss_gap(reference.losses[:both], row.losses[:both])


def answers(rows: Sequence[Row], against: str, precision: str) -> list[Answer]:
    """What is asked of the rows, the reference first among them. DeepSpeed counts with the faster of its ways,
    whichever of them it is whose memory zinf got. Where a system made no step, another is no times as fast."""
    deepspeed = against.startswith(DEEPSPEED)
    named = [row for row in rows if (row.name.startswith(DEEPSPEED) if deepspeed else row.name == against)]
    ways = [row for row in named if row.error is None]
    of = min(ways, key=lambda row: row.ratio, default=None)
    found: list[Answer] = []
    for row in rows:
        if row.share is not None:
            times = 0.0 if row.error or of is None else of.ratio / row.ratio
            aim = AIMS.get(row.share) if deepspeed else None
            found.append(Answer(f"step of {of.name if of else against}, over {row.name}", times, at_least=aim))
    for row in rows[1:]:
        if row.error is None:
            question = f"losses of {row.name}, relative difference from {rows[0].name}'s"
            found.append(Answer(question, gap(row, rows[0]), at_most=SAME[precision]))
    return found


def behind(rows: Sequence[Row]) -> list[str]:
    """A sentence for each row in which zinf is not the best: slower than a peer, or with more memory."""
    peers = [row for row in rows if row.share is None and row.error is None]
    found: list[str] = []
    for row in rows:
        if row.share is None:
            continue
        if row.error is not None:
            found.append(f"{row.name} made no step.")
            continue
        faster = [
            f"{peer.name} (by {row.ratio / peer.ratio:.2f}, which holds {peer.peak / row.peak:.2f} times the memory)"
            for peer in peers
            if peer.ratio < row.ratio
        ]
        smaller = [f"{peer.name} (by {row.peak / peer.peak:.2f})" for peer in peers if peer.peak < row.peak]
        if faster:
            found.append(f"{row.name} is slower than {', '.join(faster)}.")
        if smaller:
            found.append(f"{row.name} holds more memory than {', '.join(smaller)}.")
    return found


def missed(found: Sequence[Answer]) -> list[str]:
    """A sentence for each aim that was not reached."""
    return [
        f"Not reached: {one.question}, is {one.measured:.2f}; {one.at_least} is the aim."
        for one in found
        if one.at_least is not None and not one.measured >= one.at_least
    ]


def markdown(
    rows: Sequence[Row], against: str, origin: Mapping[str, Any], title: str, found: Sequence[Answer] = ()
) -> str:
    """The table with where it comes from, and what zinf has not reached or is not the best in, for docs/peers.md."""
    of = {row.name: row for row in rows}[against]
    own = headings(against)
    lines = [own, ["---", *["---:"] * (len(own) - 1)], *(cells(row, rows[0], of) for row in rows)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    machine = f"{origin['cpu']}, {origin['cores']} cores, {origin['memory_bytes'] / 2**30:.1f} GiB"
    sentences = "".join(f"\n{sentence}\n" for sentence in (*missed(found), *behind(rows)))
    return (
        f"{title}. `python -m bench.peers {origin['spec']}` at commit {origin['commit'][:9]}, {origin['date']}, "
        f"torch {origin['torch']}, on {machine}.\n\n{table}\n{sentences}"
    )


def begin(model: str, precision: str, rate: float = 0) -> str:
    """The line of docs/peers.md below which a case has its table. `rate`: MB/s that the disk is held to."""
    return f"<!-- measured: {model} {precision}{f' {rate:g} MB/s' if rate else ''} -->"


def put(page: str, start: str, text: str) -> str:
    """The page with `text` between the line `start` and the end that follows it. ValueError if it has no such lines."""
    before, found, after = page.partition(start + "\n")
    _, ends, rest = after.partition(END + "\n")
    if not found or not ends:
        raise ValueError(f"the page has no place for this table: a line {start}, and a line {END} below it")
    return f"{before}{start}\n{text}{END}\n{rest}"
