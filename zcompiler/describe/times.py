"""What a described model costs on its machine."""

from __future__ import annotations

from collections.abc import Mapping

from zcompiler.describe.described import Schedules
from zcompiler.plan.price import step_timeline
from zcompiler.schedule.simulate.timeline import Timeline

STEP = "step"


def timelines(found: Schedules, steps: int = 1) -> Mapping[str, Timeline]:
    """By name: "step" if one graph trains, with its update, so many times one after the other; else each graph by
    itself, and the update by itself."""
    machine = found.machine.machine
    training = [graph for graph in found.graphs if graph.trains]
    made: dict[str, Timeline] = {}
    for graph in found.graphs:
        joined = training == [graph]
        update = found.update if joined else None
        made[STEP if joined else graph.name] = step_timeline(
            graph.final,
            graph.works,
            update,
            found.late,
            machine,
            fused=found.fused,
            steps=steps if joined else 1,
        )
    if found.update is not None and len(training) != 1:
        made["update"] = step_timeline(found.update, {}, None, False, machine, fused=found.fused)
    return made
