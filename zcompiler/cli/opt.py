"""`zinf opt`: run passes on a schedule's text; show each step; accept the result as a golden's expected half."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zcompiler.errors import ZinfError
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.render import render_problems
from zcompiler.schedule.text import parse_schedule, print_schedule
from zcompiler.schedule.verify import verify

SEPARATOR = "# ----"
_PASSES = "# passes:"


@dataclass(frozen=True, slots=True)
class Golden:
    """A `.zsched` file as `zinf opt` reads it: passes from its header (empty: none), the input's text, and what is
    expected of it (None: an ordinary schedule file without that half)."""

    passes: str
    given: str
    expected: str | None


def read_golden(text: str) -> Golden:
    """Split a file at its `# ----` line and find its `# passes: SPEC` line."""
    lines = text.splitlines(keepends=True)
    marks = [i for i, line in enumerate(lines) if line.rstrip() == SEPARATOR]
    if len(marks) > 1:
        raise ZinfError(
            f"{len(marks)} lines {SEPARATOR!r} (the second is line {marks[1] + 1}); at most one may part the halves"
        )
    given = lines[: marks[0]] if marks else lines
    specs = [line[len(_PASSES) :].strip() for line in given if line.startswith(_PASSES)]
    if len(specs) > 1:
        raise ZinfError(f"{len(specs)} lines {_PASSES!r}; a golden has one")
    # The header stays in the input as a comment, so that line numbers in errors are the file's.
    return Golden(specs[0] if specs else "", "".join(given), "".join(lines[marks[0] + 1 :]) if marks else None)


def opt(file: Path, passes: str | None = None, print_after_each: bool = False, accept: bool = False) -> str:
    """The text to print: the schedule in `file` after `passes` (None: those in the file's `# passes:` line).

    The pipeline may be a part of the whole one; rules that it leaves open are shown as comments behind the result.
    `print_after_each` shows the schedule after each pass. `accept` makes the result the file's expected half, and
    returns what it did. Raises ScheduleSyntaxError, PipelineError, PassError; ZinfError for a file that is no golden.
    """
    golden = read_golden(file.read_text())
    spec = golden.passes if passes is None else passes
    shown: list[str] = []

    def show(name: str, schedule: Schedule) -> None:
        if print_after_each:
            shown.append(f"# after {name}\n{print_schedule(schedule)}\n")

    result = run_pipeline(parse_schedule(golden.given), parse_pipeline(spec), show, partial=True)
    text = print_schedule(result)
    if accept:
        if golden.expected is None or passes is not None:
            raise ZinfError(
                f"{file}: --accept is for goldens: a file with a {_PASSES!r} line and a {SEPARATOR!r} line, "
                "and no --passes beside it"
            )
        file.write_text(f"{golden.given}{SEPARATOR}\n{text}")
        return f"{file}: " + ("unchanged\n" if golden.expected == text else "expected half rewritten\n")
    problems = verify(result)
    notes = render_problems(result, problems).splitlines() if problems else []
    return "".join([*shown, text, *(f"# {line}".rstrip() + "\n" for line in notes)])
