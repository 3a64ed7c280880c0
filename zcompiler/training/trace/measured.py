"""What a Recorder took note of, by steps."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from runtime_ext.recording import Recorder, Span
from zcompiler.schedule.text import op_line
from zcompiler.training.trace.activity import PHASES, WAITS, Activity, Group, Sample


def measured(recorder: Recorder, start: float, end: float, ends: Sequence[float]) -> Group:
    """What happened from `start` to `end` on the recorder's clock, as seconds from `start`; `ends` are those of steps.

    An activity belongs to the step in which it was issued. Without any end all is one step. Work that never began is
    left out.
    """

    def step(at: float) -> int:
        return bisect(ends, at)

    found = [
        Activity(s.lane, s.label, s.begin - start, s.end - start, step(s.issued), _details(s, start))
        for s in list(recorder.spans)
        if s.stamps
    ]
    for w in list(recorder.waits):
        name = f"wait for {w.cause or w.lane}"
        details = {"lane": w.lane, "why": w.why, **({"event": w.cause} if w.cause else {})}
        found.append(Activity(WAITS, name, w.begin - start, w.end - start, step(w.begin), details))
    for p in list(recorder.phases):
        details = {"schedule": p.schedule}
        found.append(Activity(PHASES, p.name, p.begin - start, p.end - start, step(p.begin), details))
    samples = [
        Sample(
            h.at - start,
            h.tier,
            {"buffers": h.buffers, "tensors": h.tensors, "at rest": h.resting},
            step(h.at),
        )
        for h in list(recorder.held)
    ]
    bounds = [start, *(ends or [end])]
    steps = tuple((a - start, b - start) for a, b in zip(bounds, bounds[1:], strict=False))
    return Group(tuple(found), tuple(samples), steps)


def _details(span: Span, start: float) -> dict[str, str | int | float]:
    details: dict[str, str | int | float] = {"issued": span.issued - start}
    if span.nbytes:
        details["bytes"] = span.nbytes
    if span.origin is not None:
        schedule, region, op = span.origin
        details |= {"schedule": schedule, "region": region, "op": " ".join(op_line(op).split())}
    if span.error:
        details["error"] = span.error
    return details
