"""Groups of activities as a trace in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zcompiler.schedule.words import LANES
from zcompiler.training.trace.activity import PHASES, WAITS, Activity, Group

_ORDER = (PHASES, "compute", "update", WAITS, *(lane for lane in LANES if lane not in ("compute", "update")))
_PER_TRACK = 100  # thread numbers that a track may take, for activities at the same time


def events(pid: int, title: str, group: Group) -> list[dict[str, Any]]:
    """The group as one process: a thread for each track, a second one where a lane did two things at once, and for each
    tier a counter."""
    found: list[dict[str, Any]] = [_meta(pid, 0, "process_name", name=title)]
    found.append(_meta(pid, 0, "process_sort_index", sort_index=pid))
    for number, track in enumerate(_tracks(group)):
        for row, activities in enumerate(_rows([a for a in group.activities if a.track == track])):
            tid = number * _PER_TRACK + row + 1
            found.append(_meta(pid, tid, "thread_name", name=track if row == 0 else f"{track} {row + 1}"))
            found.append(_meta(pid, tid, "thread_sort_index", sort_index=tid))
            found += [_complete(pid, tid, a) for a in activities]
    for sample in group.samples:
        args = dict(sample.parts)
        found.append({"ph": "C", "pid": pid, "name": f"held {sample.tier}", "ts": _us(sample.at), "args": args})
    return found


def aligned(group: Group, measured: Group) -> Group:
    """The planned group with each step moved to where its first phase was measured to begin, or behind the step before
    it if that is later.
    """
    shifts: list[float] = []
    free = 0.0
    for i, (begin, end) in enumerate(group.steps):
        own = (a.begin for a in measured.activities if a.track == PHASES and a.step == i)
        shifts.append(max(min(own, default=measured.steps[i][0]), free) - begin)
        free = end + shifts[-1]
    activities = [a.moved(shifts[a.step]) for a in group.activities]
    samples = [replace(s, at=s.at + shifts[s.step]) for s in group.samples]
    steps = [(b + s, e + s) for (b, e), s in zip(group.steps, shifts, strict=False)]
    return Group(tuple(activities), tuple(samples), tuple(steps))


def trace(processes: Sequence[tuple[int, str, Group]], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole file; `about` is what a viewer leaves alone, under the key zinf."""
    listed = [event for pid, title, group in processes for event in events(pid, title, group)]
    return {"traceEvents": listed, "displayTimeUnit": "ms", "zinf": about}


def _tracks(group: Group) -> list[str]:
    there = {a.track for a in group.activities}
    return [t for t in _ORDER if t in there] + sorted(there - set(_ORDER))


def _rows(activities: list[Activity]) -> list[list[Activity]]:
    """As few rows as let no two activities of a row overlap."""
    rows: list[list[Activity]] = []
    for a in sorted(activities, key=lambda a: (a.begin, a.end)):
        row = next((r for r in rows if r[-1].end <= a.begin), None)
        if row is None:
            rows.append([a])
        else:
            row.append(a)
    return rows


def _complete(pid: int, tid: int, a: Activity) -> dict[str, Any]:
    args = {"step": a.step, **{k: round(v, 9) if isinstance(v, float) else v for k, v in a.details.items()}}
    begin = _us(a.begin)
    # From the rounded ends, so that what touched still touches.
    dur = round(_us(a.end) - begin, 3)
    return {"ph": "X", "pid": pid, "tid": tid, "name": a.name, "cat": a.track, "ts": begin, "dur": dur, "args": args}


def _meta(pid: int, tid: int, what: str, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
