"""What a training step of a session is going to cost on a machine, from its schedules alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompiler.errors import ZinfError
from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.plan.price import graph_program, step_timeline, update_program
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.program import Program
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.words import UPDATE_LANE, phase_of
from zcompiler.training.session import Session


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a session: its schedules and the work of their runs, by name, and whether updates run late."""

    schedules: Mapping[str, Schedule]
    works: Mapping[str, Mapping[str, Work]]
    is_late: bool

    @classmethod
    def of(cls, session: Session) -> Known:
        """As it stands now."""
        return cls(dict(session.schedules), dict(session.works), session.late_steps > 0)


def predicted_step(session: Session, machine: Machine, *, fused: bool = False, steps: int = 1) -> Timeline:
    """The timeline of `steps` training steps, one after the other, each with its update done as the last one was.

    `fused`: whether the optimizer updates in one kernel. ZinfError unless the session trains with exactly one graph
    and has made a step.
    """
    return predicted(Known.of(session), machine, fused=fused, steps=steps)


def predicted(known: Known, machine: Machine, *, fused: bool = False, steps: int = 1) -> Timeline:
    """The same of what is known of a session."""
    graphs = [name for name, schedule in known.schedules.items() if _trains(schedule)]
    if len(graphs) != 1 or UPDATE_LANE not in known.schedules:
        there = ", ".join(known.schedules) or "none"
        raise ZinfError(f"one graph that trains and an update make a step; the schedules here are: {there}")
    graph = graphs[0]
    schedule, update = known.schedules[graph], known.schedules[UPDATE_LANE]
    return step_timeline(schedule, known.works[graph], update, known.is_late, machine, fused=fused, steps=steps)


def program(known: Known, name: str, machine: Machine) -> Program:
    """One of the schedules, with the seconds of its ops. LookupError for a run of which nobody knows the work."""
    if name == UPDATE_LANE:
        return update_program(known.schedules[name], known.is_late, machine)
    return graph_program(known.schedules[name], known.works.get(name, {}), machine)


def _trains(schedule: Schedule) -> bool:
    return any(phase_of(region.name) == "bwd" for region in schedule.regions)
