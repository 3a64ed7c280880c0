"""How long a schedule takes on a machine, as far as its text says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from zcompiler.machine.choose import shipped_machine
from zcompiler.machine.machine import Machine
from zcompiler.machine.work import ITEM, Matmul, Work
from zcompiler.options import MACHINES
from zcompiler.schedule.model import Op, Schedule
from zcompiler.schedule.simulate.costs import costs, interference, shared_lanes
from zcompiler.schedule.simulate.program import prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import stored_bytes, subgroup_bytes
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.words import RUN_LANES, UPDATE_LANE

_UNKNOWN: Mapping[str, Work] = MappingProxyType({})


def reference_machines() -> tuple[Machine, ...]:
    """The machines that come with zinf: the same wherever a comparison is made."""
    return tuple(shipped_machine(name) for name in MACHINES)


def has_lanes(machine: Machine, schedule: Schedule) -> bool:
    """Whether the machine has every lane that the schedule moves something on."""
    used = {op.lane for _, op in schedule.ops() if op.kind != "release"} - set(RUN_LANES)
    return used <= {lane.name for lane in machine.lanes}


def timeline(schedule: Schedule, machine: Machine, known: Mapping[str, Work] = _UNKNOWN) -> Timeline:
    """When each op runs. The schedule has to keep the verifier's rules and the machine to have its lanes. `known`: the
    work of its runs, by the name of what they run; of what is not there it is estimated.

    An update is followed on its own, as one that is done at once. Line i is op i in issue order; a last one waits for
    all transfers.
    """
    runs = [op for _, op in schedule.ops() if op.kind == "run"]
    works = {op.value: known[op.value] if op.value in known else estimated_work(schedule, op) for op in runs}
    lag = None
    if schedule.world == 1 and schedule.compute_tier.name == "host":
        # Today's runtime lets so much memory be released and still in use. There is none yet for devices and ranks.
        updates = any(op.lane == UPDATE_LANE and op.kind == "run" for _, op in schedule.ops())
        lag = subgroup_bytes(schedule) if updates else stored_bytes(schedule)
    program = prepare(schedule, costs(schedule, machine, works), lag, interference(machine))
    return simulate(program, shared_lanes(machine))


def estimated_work(schedule: Schedule, op: Op) -> Work:
    """What a run asks of a machine. A text has no FLOPs, so this is an estimate from the bytes and shapes it does have.

    Each parameter that is read counts as the weight of one matmul, of two where the run makes a gradient. Its rows are
    those of the activation with the fewest (the product of all dimensions but the last); without shapes nothing but
    bytes counts.
    """
    used = [schedule.value(name) for name in dict.fromkeys((*op.reads, *op.writes))]
    made = sum(schedule.value(name).nbytes for name in op.writes)
    shapes = [v.shape for v in used if v.kind in ("act", "input", "output") and v.shape is not None]
    rows = min((math.prod(shape[:-1]) for shape in shapes if len(shape) > 1), default=0)
    count = 2 if any(v.kind == "grad" for v in map(schedule.value, op.writes)) else 1
    matmuls = []
    for value in map(schedule.value, op.reads):
        elements = value.nbytes // ITEM.get(value.dtype, 4)
        if value.kind == "param" and rows and elements:
            side = math.isqrt(elements)
            matmuls.append(Matmul(value.dtype, rows, side, elements // side, count=count))
    return Work(tuple(matmuls), sum(v.nbytes for v in used), 1, made)
