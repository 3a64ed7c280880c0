"""What a training step of a session is going to cost on a machine, from its schedules alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompiler.errors import ZinfError
from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.costs import costs, shared_lanes
from zcompiler.schedule.simulate.program import Program, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import at_once, late, repeated, stored_bytes, subgroup_bytes
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.words import UPDATE_LANE, phase_of
from zcompiler.training.ordering import DEPTH
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
    graph = program(known, graphs[0], machine, fused)
    join = late if known.is_late else at_once
    step = join(graph, program(known, UPDATE_LANE, machine, fused))
    return simulate(repeated(step, steps), shared_lanes(machine))


def program(known: Known, name: str, machine: Machine, fused: bool = False) -> Program:
    """One of the schedules, with the seconds of its ops. LookupError for a run of which nobody knows the work."""
    schedule = known.schedules[name]
    lag = stored_bytes(schedule)
    if name == UPDATE_LANE:
        lag = (DEPTH if known.is_late else 1) * subgroup_bytes(schedule)
    return prepare(schedule, costs(schedule, machine, known.works.get(name, {}), fused), lag)


def _trains(schedule: Schedule) -> bool:
    return any(phase_of(region.name) == "bwd" for region in schedule.regions)
