"""What the benchmarks found, as rows: questions with the ratios that answer them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.collect.runs import JUDGED, Line, spec

HEADINGS = ("question", "measured", "allowed", "holds", "run")
LONGEST = 200  # characters of an error


@dataclass(frozen=True, slots=True)
class Row:
    """One question. `allowed` is "" where the ratio is only told; `judged`: whether `holds` says something."""

    question: str
    measured: str
    allowed: str
    judged: bool
    holds: bool
    run: str

    def cells(self) -> tuple[str, ...]:
        holds = "" if not self.judged else "yes" if self.holds else "**no**"
        return self.question, self.measured, self.allowed, holds, f"`{self.run}`"


def rows(lines: Mapping[str, Sequence[Line]]) -> list[Row]:
    """A row for each answer, and one for a benchmark that could not be run, or that ended without any."""
    return [row for name, own in lines.items() for row in _rows(name, own)]


def _rows(name: str, lines: Sequence[Line]) -> Iterator[Row]:
    answers = [line for line in lines if "question" in line]
    for line in answers:
        allowed = _allowed(line["at_least"], line["at_most"])
        yield Row(line["question"], _ratio(line["measured"]), allowed, line["judged"], line["holds"], spec(name))
    end = lines[-1]
    if end["ended"] not in JUDGED:
        yield Row(f"could not be run: {_short(end['error'])}", "", "", True, False, spec(name))
    elif not answers:
        yield Row("it ended, and answered nothing", "", "", True, False, spec(name))


def _allowed(at_least: float | None, at_most: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f"{_ratio(at_least)} to {_ratio(at_most)}"
    if at_least is not None:
        return f"at least {_ratio(at_least)}"
    return f"at most {_ratio(at_most)}" if at_most is not None else ""


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
