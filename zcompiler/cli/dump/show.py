"""A description as the sections that the user asks for, each a file's name and its text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zcompiler.describe.described import Described, Schedules
from zcompiler.describe.times import timelines
from zcompiler.plan.plan import KINDS
from zcompiler.schedule.memory import peak
from zcompiler.schedule.simulate.text import print_summary, print_times
from zcompiler.schedule.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sections. `after`: the title of a pass, or "all". With none of them: plan and finished schedules."""

    after: str | None = None
    ops: bool = False
    plan: bool = False
    times: bool = False
    json: bool = False

    @property
    def nothing(self) -> bool:
        return not (self.after or self.ops or self.plan or self.times or self.json)


Section = tuple[str, str]  # path in a folder, text


def sections(found: Schedules, wanted: Wanted) -> Iterator[Section]:
    """ZinfError for a pass that did not run."""
    if wanted.json:
        yield "dump.json", json.dumps(document(found), indent=1) + "\n"
        return
    for graph in found.graphs:
        if wanted.plan or wanted.nothing:
            yield f"{graph.name}/plan.txt", _plan(graph, in_full=wanted.plan)
        if wanted.ops:
            yield f"{graph.name}/ops.txt", graph.ops
        if wanted.after is not None:
            chosen = graph.passes if wanted.after == "all" else [(wanted.after, graph.after(wanted.after))]
            numbers = {title: i for i, (title, _) in enumerate(graph.passes)}
            for title, schedule in chosen:
                yield f"{graph.name}/{numbers[title]:02}-{title}.zsched", str(schedule)
        elif wanted.nothing:
            yield f"{graph.name}/{len(graph.passes) - 1:02}-final.zsched", str(graph.final)
    if found.update is not None and (wanted.nothing or wanted.after in ("all", "final")):
        yield "update/00-final.zsched", str(found.update)
    if wanted.times:
        for name, timeline in timelines(found).items():
            yield f"{name}/times.txt", print_times(timeline)
            yield f"{name}/summary.txt", print_summary(timeline)


def document(found: Schedules) -> dict[str, Any]:
    """Everything but the operators, as JSON has it: sizes in bytes, times in seconds."""
    return {
        "machine": str(found.machine),
        "memory": found.options.memory,
        "notes": list(found.notes),
        "graphs": [_graph(graph) for graph in found.graphs],
        "update": None if found.update is None else {"late": found.late, "schedule": str(found.update)},
        "times": {name: _metrics(timeline) for name, timeline in timelines(found).items()},
    }


def _plan(graph: Described, in_full: bool) -> str:
    homes = [f"{name}: {homes}" for name, homes in graph.plan.placement.items()] if in_full else []
    return graph.reasons + "".join(f"{line}\n" for line in homes)


def _graph(graph: Described) -> dict[str, Any]:
    plan = graph.plan
    return {
        "name": graph.name,
        "trains": graph.trains,
        "plan": {
            "placement": {b: {kind: getattr(homes, kind) for kind in KINDS} for b, homes in plan.placement.items()},
            "pipeline": plan.pipeline,
            "prefetch": plan.prefetch,
            "least": plan.least,
            "reasons": list(plan.reasons),
        },
        "peak": {tier: {"bytes": size, "at": at} for tier, (size, at) in peak(graph.final).items()},
        "schedules": [{"after": title, "text": str(schedule)} for title, schedule in graph.passes],
    }


def _metrics(timeline: Timeline) -> Mapping[str, Any]:
    exposed, drained, moved = timeline.exposed, timeline.drained, timeline.moved
    return {
        "seconds": timeline.seconds,
        "phases": dict(timeline.phases()),
        "peak": timeline.peak,
        "lanes": {
            lane: {
                "busy": busy,
                "exposed": exposed.get(lane, 0.0),
                "at_end": drained.get(lane, 0.0),
                "hidden": timeline.hidden(lane),
                "bytes": moved.get(lane, 0),
            }
            for lane, busy in timeline.busy.items()
        },
    }
