"""The page: tables made here, and charts that its own script draws from the data in it. It loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from zcompiler.cli.report.numbers import (
    MOVING,
    OUTSIDE,
    TITLES,
    Cost,
    compared,
    lanes,
    most_held,
    phases,
)
from zcompiler.cli.report.read import File, Recording, Side
from zcompiler.cli.report.words import count, rate, ratio, seconds, size
from zcompiler.schedule.words import STORE, phase_of
from zcompiler.training.trace.activity import WAITS


def page(file: File, title: str) -> str:
    """The whole page as HTML."""
    folder = files(__package__)
    names = ("page.html", "page.css", "drawing.js", "page.js")
    read = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"seconds": seconds, "size": size, "ratio": ratio, "rate": rate, "count": count}
    return environment.from_string(read["page.html"]).render(
        title=title,
        file=file,
        style=Markup(read["page.css"]),
        script=Markup(read["drawing.js"] + read["page.js"]),
        sections=[_section(number, recording, file.first) for number, recording in enumerate(file.recordings)],
    )


def _section(number: int, recording: Recording, first: int) -> dict[str, Any]:
    steps = compared(recording)
    measured = phases(recording.measured, steps)
    planned = phases(recording.planned, steps) if recording.planned is not None else {}
    moving = [lane for lane in MOVING if any(lane in c.moved for c in (*measured.values(), *planned.values()))]
    rows = [(name, TITLES[name], measured.get(name, Cost()), planned.get(name)) for name in TITLES if name in measured]
    use, expected = lanes(recording.measured, steps), {}
    if recording.planned is not None:
        expected = lanes(recording.planned, steps)
    plans = recording.about["plans"]
    return {
        "number": number,
        "about": recording.about,
        "steps": steps,
        "names": [first + i for i in range(steps)],
        "moving": moving,
        "rows": rows,
        "outside": OUTSIDE,
        "whole": _whole(recording.measured, measured, steps),
        "planned_whole": _whole(recording.planned, planned, steps) if recording.planned is not None else None,
        "lanes": [(lane, use[lane], expected.get(lane)) for lane in use],
        "held": _held(recording),
        "plans": plans,
        "schedules": recording.about["schedules"],
        "data": Markup(_data(recording, steps, first)),
    }


def _whole(side: Side, costs: Mapping[str, Cost], steps: int) -> Cost:
    """A step: its phases and what is between them. Where one phase is inside another, no second counts twice."""
    whole = Cost(sum(end - begin for begin, end in side.steps[:steps]) / max(1, steps))
    for cost in costs.values():
        whole.exposed += cost.exposed
        for lane, moved in cost.moved.items():
            whole.moved[lane] = whole.moved.get(lane, 0.0) + moved
    return whole


def _held(recording: Recording) -> list[tuple[str, int, int | None, int | None]]:
    """Of each tier: its name, the most it held, what was planned, and the limit."""
    expected = most_held(recording.planned) if recording.planned is not None else {}
    limits = {"host": recording.about["memory"]}
    most = most_held(recording.measured)
    return [(tier, held, expected.get(tier), limits.get(tier)) for tier, held in most.items() if tier != STORE]


def _data(recording: Recording, steps: int, first: int) -> str:
    """What the script draws, as JSON that may stand inside a script element."""
    sides = {"measured": _drawn(recording.measured)}
    if recording.planned is not None:
        sides["planned"] = _drawn(recording.planned)
    data = {"sides": sides, "limit": recording.about["memory"], "steps": steps, "first": first}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _drawn(side: Side) -> dict[str, Any]:
    events = []
    for e in side.events:
        d = e.details
        lines = [e.name, str(d.get("op", "")), f"issued in {d['schedule']}" if "schedule" in d else ""]
        if "bytes" in d:
            taken = e.end - e.begin
            lines.append(size(d["bytes"]) + (f", {rate(d['bytes'] / taken)}" if taken else ""))
        if e.track == WAITS:
            lines.append(f"computing stood still for {d['lane']}: {_WHY[d['why']]}")
        if "error" in d:
            lines.append(f"failed: {d['error']}")
        phase = "wait" if e.track == WAITS else phase_of(d["region"]) if "region" in d else e.name
        text = "\n".join(line for line in lines if line)
        events.append([e.track, e.thread, round(e.begin, 7), round(e.end, 7), phase, text, e.step])
    held = [[round(h.at, 7), h.tier, list(h.parts.values())] for h in side.held]
    parts = list(side.held[0].parts) if side.held else []
    return {"events": events, "held": held, "parts": parts, "steps": [list(s) for s in side.steps]}


_WHY = {
    "use": "for what it brings",
    "room": "for room that it still took",
    "lag": "for memory that was released and still in use",
    "end": "at the end of a phase",
}
