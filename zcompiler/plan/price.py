"""What a step of a plan costs on a machine: its schedule and that of its update, simulated."""

from __future__ import annotations

from collections.abc import Mapping

from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.plan.assumed import AssumedUpdate
from zcompiler.plan.beside import DEPTH
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.costs import costs, shared_lanes
from zcompiler.schedule.simulate.program import Program, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import at_once, late, repeated, stored_bytes, subgroup_bytes
from zcompiler.schedule.simulate.timeline import Timeline

STEADY = 2  # steps, of which the last counts: what one leaves over to the next is in it


def step_seconds(schedule: Schedule, works: Mapping[str, Work], update: AssumedUpdate, machine: Machine) -> float:
    """Seconds of a steady step, or of a forward alone if nothing trains. `works` as for `costs`."""
    steps = STEADY if update.schedule is not None and update.late else 1
    graph = graph_program(schedule, works, machine)
    found = simulate(
        graph if update.schedule is None else repeated(joined(graph, update.schedule, update.late, machine), steps),
        shared_lanes(machine),
    )
    before = found.marks[len(found.marks) * (steps - 1) // steps - 1][1] if steps > 1 else 0.0
    return found.seconds - before + machine.update_seconds(update.in_place)


def step_timeline(
    graph: Program, update: Schedule, is_late: bool, machine: Machine, fused: bool, steps: int
) -> Timeline:
    """`steps` training steps, one after the other, each with its update done in the same way."""
    return simulate(repeated(joined(graph, update, is_late, machine, fused), steps), shared_lanes(machine))


def joined(graph: Program, update: Schedule, is_late: bool, machine: Machine, fused: bool = False) -> Program:
    """A graph and the update behind it as one step; `fused`: whether the optimizer updates in one kernel."""
    lag = (DEPTH if is_late else 1) * subgroup_bytes(update)
    program = prepare(update, costs(update, machine, {}, fused), lag)
    return (late if is_late else at_once)(graph, program)


def graph_program(schedule: Schedule, works: Mapping[str, Work], machine: Machine) -> Program:
    return prepare(schedule, costs(schedule, machine, works), stored_bytes(schedule))
