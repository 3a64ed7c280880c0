"""A timeline as text: each line of a schedule with when it starts and how long it takes, and a summary of the whole."""

from __future__ import annotations

from collections.abc import Iterator

from zcompiler.schedule.simulate.program import FREE
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.text import op_line


def print_times(timeline: Timeline) -> str:
    """Every line in issue order: its start and its seconds in milliseconds (of a release: until the memory is free),
    then what it is, and in front of what it waited for `<-`."""
    return "".join(f"{line}\n" for line in _lines(timeline))


def print_summary(timeline: Timeline) -> str:
    """Seconds of the phases; for each lane how long it worked, was waited for, was waited for at the end of a phase,
    and was hidden, and the line of it that was waited for longest; the most that each tier held."""
    phases = list(timeline.phases())
    parts = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in phases)
    lines = [f"{timeline.program.schedule.name}: {_ms(timeline.seconds)} ms{f' ({parts})' if len(phases) > 1 else ''}"]
    lines.append(f"{'lane':<11}{'busy':>11}{'exposed':>11}{'at end':>11}{'hidden':>11}  longest wait, all in ms")
    exposed, drained, causes = timeline.exposed, timeline.drained, timeline.causes()
    for lane, busy in timeline.busy.items():
        row = [busy, exposed.get(lane, 0.0), drained.get(lane, 0.0), timeline.hidden(lane)]
        most = next((f"  {_ms(seconds)} for {event}" for of, event, seconds in causes if of == lane), "")
        lines.append(f"{lane:<11}{''.join(f'{_ms(seconds):>11}' for seconds in row)}{most}")
    for tier, most_held in timeline.peak.items():
        budget = timeline.program.budgets[tier]
        limit = "" if budget is None else f" of {format_bytes(budget)}"
        lines.append(f"peak {tier} {format_bytes(most_held)}{limit}")
    return "".join(f"{line}\n" for line in lines)


def _lines(timeline: Timeline) -> Iterator[str]:
    waited: dict[int, list[str]] = {}
    for wait in timeline.waits:
        why = f" ({wait.why})" if wait.why != "use" else ""
        waited.setdefault(wait.waiter, []).append(f"{_ms(wait.seconds)} {timeline.name(wait.cause)}{why}")
    region = ""
    for i, line in enumerate(timeline.program.lines):
        if line.op is None and i not in waited:
            continue
        if line.region != region and line.region:
            region = line.region
            yield f"region {region}"
        taken = timeline.end[i] - timeline.start[i]
        waits = f"  <- {', '.join(waited[i])}" if i in waited else ""
        if line.op is not None:
            seconds = "" if line.what == FREE and not taken else _ms(taken)
            yield f"{_ms(timeline.start[i]):>11}{seconds:>11}{op_line(line.op)}{waits}"
        else:
            yield f"{_ms(timeline.start[i]):>11}{'':>11}  {line.mark or line.lane}{waits}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
