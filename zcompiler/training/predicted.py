"""What a training step of a session is going to cost on a machine, from its schedules alone."""

from __future__ import annotations

from zcompiler.errors import ZinfError
from zcompiler.machine.machine import Machine
from zcompiler.plan.beside import DEPTH
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.costs import costs, shared_lanes
from zcompiler.schedule.simulate.program import Program, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import at_once, late, repeated, stored_bytes, subgroup_bytes
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
    graph = _program(session, graphs[0], machine, fused, None)
    update = session.schedules["update"]
    is_late = session.late_steps > 0
    lag = (DEPTH if is_late else 1) * subgroup_bytes(update)
    join = late if is_late else at_once
    step = join(graph, _program(session, "update", machine, fused, lag))
    return simulate(repeated(step, steps), shared_lanes(machine))


def _program(session: Session, name: str, machine: Machine, fused: bool, lag: int | None) -> Program:
    schedule = session.schedules[name]
    seconds = costs(schedule, machine, session.works.get(name, {}), fused)
    return prepare(schedule, seconds, stored_bytes(schedule) if lag is None else lag)


def _trains(schedule: Schedule) -> bool:
    return any(phase_of(region.name) == "bwd" for region in schedule.regions)
