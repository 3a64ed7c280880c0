"""What each op of a schedule costs on a machine, while its lane works alone."""

from __future__ import annotations

from collections.abc import Mapping

from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.schedule.model import Op, Schedule
from zcompiler.schedule.simulate.program import Seconds, moved_bytes
from zcompiler.schedule.words import RUN_LANES, UPDATE_LANE

MIXED = "nvme_mixed"
DISK = ("nvme_read", "nvme_write")


def costs(schedule: Schedule, machine: Machine, works: Mapping[str, Work], fused: bool = False) -> Seconds:
    """Seconds of each op that takes time: transfers by their bytes, updates by those of parameters, runs by `works`.

    `works` has what each run asks of the machine, by the name of what it runs, so that a run keeps its work wherever a
    pass puts it; `fused` whether AdamW runs as one kernel. LookupError for a run that is not there.
    """

    def seconds(region: str, op: Op) -> float:
        if op.lane not in RUN_LANES:
            return machine.lane_seconds(op.lane, moved_bytes(schedule, op))
        if op.lane == UPDATE_LANE:
            updated = (schedule.value(name) for name in op.reads)
            return machine.update_seconds(sum(v.nbytes for v in updated if v.kind == "param"), fused)
        if op.value not in works:
            raise LookupError(f"{region}: nobody has said what work run({op.value}) is, so its time is unknown")
        return machine.region + machine.compute_seconds(works[op.value])

    return seconds


def interference(machine: Machine) -> dict[str, float]:
    """Seconds by which each byte on a lane makes what is computed meanwhile longer."""
    return {lane.name: 1 / lane.interference for lane in machine.lanes if lane.interference is not None}


def shared_lanes(machine: Machine) -> dict[str, float]:
    """The lanes that are one disk, and the part of its own speed that each keeps while the other works, too."""
    rates = {lane.name: lane.bandwidth for lane in machine.lanes}
    if MIXED not in rates:
        return {}
    part = min(1.0, rates[MIXED] / sum(rates[lane] for lane in DISK))
    return dict.fromkeys(DISK, part)
