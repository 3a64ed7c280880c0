"""What a training step of a session is going to cost on a machine, from its schedules alone."""

from __future__ import annotations

from zcompiler.errors import ZinfError
from zcompiler.machine.machine import Machine
from zcompiler.plan.price import step_timeline
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.words import phase_of
from zcompiler.training.session import Session


def predicted_step(session: Session, machine: Machine, *, fused: bool = False, steps: int = 1) -> Timeline:
    """The timeline of `steps` training steps, one after the other, each with its update done as the last one was.

    `fused`: whether the optimizer updates in one kernel. ZinfError unless the session trains with exactly one graph
    and has made a step.
    """
    graphs = [name for name, schedule in session.schedules.items() if _trains(schedule)]
    if len(graphs) != 1 or "update" not in session.schedules:
        there = ", ".join(session.schedules) or "none"
        raise ZinfError(f"one graph that trains and an update make a step; the schedules here are: {there}")
    graph, update = session.schedules[graphs[0]], session.schedules["update"]
    works, is_late = session.works[graphs[0]], session.late_steps > 0
    return step_timeline(graph, works, update, is_late, machine, fused=fused, steps=steps)


def _trains(schedule: Schedule) -> bool:
    return any(phase_of(region.name) == "bwd" for region in schedule.regions)
