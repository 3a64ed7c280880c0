"""What a training step is going to cost on a machine, from its finished schedules alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.plan.assumed import AssumedUpdate
from zcompiler.plan.beside import DEPTH
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.costs import costs, interference, shared_lanes
from zcompiler.schedule.simulate.program import Program, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import at_once, late, repeated, stored_bytes, subgroup_bytes
from zcompiler.schedule.simulate.timeline import Timeline

STEADY = 2  # steps, of which the last counts: what a late update leaves over to the next is in it


def step_seconds(schedule: Schedule, works: Mapping[str, Work], update: AssumedUpdate, machine: Machine) -> float:
    """Seconds of a steady step, or of a forward alone if nothing trains. `works` has the work of each run."""
    is_late = update.late
    try:
        found = step_timeline(schedule, works, update.schedule, is_late, machine, steps=STEADY if is_late else 1)
    except MemoryError:  # a run would take the memory outside the arena; what it costs is about the same
        is_late, unlimited = False, _without_budgets(schedule)
        alone = None if update.schedule is None else _without_budgets(update.schedule)
        found = step_timeline(unlimited, works, alone, is_late, machine)
    steps = STEADY if is_late else 1
    before = found.marks[len(found.marks) * (steps - 1) // steps - 1][1] if steps > 1 else 0.0
    return found.seconds - before + machine.update_seconds(update.in_place)


def _without_budgets(schedule: Schedule) -> Schedule:
    return replace(schedule, tiers=tuple(replace(tier, budget=None) for tier in schedule.tiers))


def step_timeline(
    graph: Schedule,
    works: Mapping[str, Work],
    update: Schedule | None,
    is_late: bool,
    machine: Machine,
    *,
    fused: bool = False,
    steps: int = 1,
) -> Timeline:
    """The timeline of `steps` steps of one graph, one after the other; each with its update, if there is one, at once
    or late. `works` has the work of each of the graph's runs; `fused`: whether the optimizer updates in one kernel."""
    step = graph_program(graph, works, machine)
    if update is not None:
        join = late if is_late else at_once
        step = join(step, update_program(update, is_late, machine, fused))
    return simulate(repeated(step, steps), shared_lanes(machine))


def graph_program(graph: Schedule, works: Mapping[str, Work], machine: Machine) -> Program:
    """A graph with the seconds of its ops. LookupError for a run of which nobody knows the work."""
    return prepare(graph, costs(graph, machine, works), stored_bytes(graph), interference(machine))


def update_program(update: Schedule, is_late: bool, machine: Machine, fused: bool = False) -> Program:
    """An update with the seconds of its ops; `fused`: whether the optimizer updates in one kernel."""
    lag = (DEPTH if is_late else 1) * subgroup_bytes(update)
    return prepare(update, costs(update, machine, {}, fused), lag, interference(machine))
