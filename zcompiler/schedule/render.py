"""Shows what the verifier found in the text itself: the bad line marked, its neighbours around it."""

from __future__ import annotations

from collections.abc import Sequence

from zcompiler.schedule.model import Schedule
from zcompiler.schedule.text import schedule_lines
from zcompiler.schedule.verify import Problem

_SHOWN = 8


def render_problems(schedule: Schedule, problems: Sequence[Problem], around: int = 6) -> str:
    """For each problem its rule, its message and the text around its line, which is marked. At most eight problems."""
    lines = list(schedule_lines(schedule))
    at = {place: i for i, (_, place) in enumerate(lines) if place}
    parts = [_one(lines, at.get((p.region, p.op)), p, around) for p in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        parts.append(f"... and {len(problems) - _SHOWN} more")
    return "\n".join(parts)


def _one(lines: list[tuple[str, tuple[str, int] | None]], bad: int | None, problem: Problem, around: int) -> str:
    head = f"[{problem.rule}] {problem}"
    if bad is None:
        return head
    shown = [head]
    start = max(0, bad - around)
    region = next((i for i in range(bad, -1, -1) if lines[i][0].startswith("region ")), bad)
    if region < start:
        shown += [f"     {lines[region][0]}", "       ..."]
    for i in range(start, min(len(lines), bad + 4)):
        shown.append(f"{'-->' if i == bad else '   '}  {lines[i][0]}".rstrip())
        if i == bad:
            text = lines[i][0]
            indent = len(text) - len(text.lstrip())
            shown.append(f"     {' ' * indent}{'^' * (len(text) - indent)} {problem.rule}")
    return "\n".join(shown)
