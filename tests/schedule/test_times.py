"""Whole steps, their update at once and late: the texts in `times/` say when each line runs and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from zcompiler.machine.choose import shipped_machine
from zcompiler.machine.work import Matmul, Work
from zcompiler.plan.price import step_timeline
from zcompiler.schedule.model import Op
from zcompiler.schedule.simulate.costs import costs, interference, shared_lanes
from zcompiler.schedule.simulate.program import Program, moved_bytes, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import at_once, late, repeated, stored_bytes, subgroup_bytes
from zcompiler.schedule.simulate.text import print_summary, print_times
from zcompiler.schedule.text import parse_schedule

HERE = Path(__file__).parent / "times"
GRAPH, UPDATE = (parse_schedule((HERE / f"{name}.zsched").read_text()) for name in ("graph", "update"))
Step = Callable[[Program, Program], Program]
LAPTOP = shipped_machine("laptop")
DISK = {"nvme_read": 0.5, "nvme_write": 0.5}


def program(name: str, region_seconds: float = 2e-3) -> Program:
    """A page takes a millisecond, a run two."""
    schedule = {"graph": GRAPH, "update": UPDATE}[name]

    def seconds(region: str, op: Op) -> float:
        return region_seconds if op.kind == "run" else moved_bytes(schedule, op) / 4096e3

    return prepare(schedule, seconds)


@pytest.mark.parametrize("name", ["graph", "at-once", "late"])
def test_times_are_those_of_the_text(name: str) -> None:
    graph, update = program("graph"), program("update")
    made = {"graph": graph, "at-once": at_once(graph, update), "late": late(graph, update)}[name]
    timeline = simulate(made, DISK)
    assert print_times(timeline) + "\n" + print_summary(timeline) == (HERE / f"{name}.txt").read_text()


@pytest.mark.parametrize("step", [at_once, late])
def test_each_step_is_like_the_one_before_and_leaves_nothing_behind(step: Step) -> None:
    timeline = simulate(repeated(step(program("graph"), program("update")), 3), DISK)
    phases = list(timeline.phases())
    assert [name for name, _ in phases] == ["fwd", "bwd", "update"] * 3
    assert [seconds for _, seconds in phases[3:6]] == pytest.approx([seconds for _, seconds in phases[6:]])
    times, held = timeline.held("host")
    assert held[-1] == timeline.program.at_rest["host"]


def test_a_late_update_before_a_forward_that_is_long_enough_hides_its_writes() -> None:
    quick, slow = (simulate(late(program("graph", s), program("update", s)), DISK) for s in (1e-4, 8e-3))
    assert quick.drained["nvme_write"] > 0
    assert "nvme_write" not in slow.drained


def test_parameters_that_rest_in_memory_are_updated_before_the_region_that_reads_them() -> None:
    text = str(GRAPH).replace("param f32 4KiB home=nvme", "param f32 4KiB home=host")
    text = "".join(f"{line}\n" for line in text.splitlines() if " read  " not in line and ":full" not in line)
    text = "".join(
        f"{line.split(' after ')[0]}\n" for line in text.splitlines() if not line.startswith(("  live", "peak"))
    )
    graph = prepare(parse_schedule(text), lambda region, op: 2e-3)
    found = [line.op.value for line in late(graph, program("update")).lines if line.op and line.op.kind == "run"]
    assert found == ["update/l0", "fwd/l0", "update/l1", "fwd/l1", "bwd/l1", "bwd/l0"]


def test_a_machine_prices_runs_by_their_work_transfers_by_their_bytes_and_updates_by_their_parameters() -> None:
    work = Work((Matmul("f32", 2048, 2048, 2048),), moved=20_000_000, kernels=3)
    works = {op.value: work for _, op in GRAPH.ops() if op.kind == "run"}
    seconds = {
        f"{op.kind}({op.value})": costs(GRAPH, LAPTOP, works)(r.name, op)
        for r, op in GRAPH.ops()
        if op.kind != "release"
    }
    assert seconds["read(l0)"] == LAPTOP.lane_seconds("nvme_read", 4096)
    assert seconds["run(fwd/l0)"] == LAPTOP.region + LAPTOP.compute_seconds(work)
    updates = {op.value: costs(UPDATE, LAPTOP, {})(r.name, op) for r, op in UPDATE.ops() if op.kind == "run"}
    assert updates == dict.fromkeys(("update/l0", "update/l1"), LAPTOP.update_seconds(4096))


def test_a_step_is_longer_where_transfers_slow_what_is_computed() -> None:
    slowed = replace(LAPTOP, lanes=tuple(replace(lane, interference=1e6) for lane in LAPTOP.lanes))
    assert interference(LAPTOP) == {} and interference(slowed) == dict.fromkeys((la.name for la in LAPTOP.lanes), 1e-6)
    works = {op.value: Work() for _, op in GRAPH.ops() if op.kind == "run"}
    quick, slow = (step_timeline(GRAPH, works, UPDATE, False, machine) for machine in (LAPTOP, slowed))
    moved = sum(line.moved for line in slow.program.lines)
    assert moved and quick.seconds < slow.seconds <= quick.seconds + moved * 1e-6


def test_a_run_whose_work_nobody_knows_is_refused() -> None:
    with pytest.raises(LookupError, match=r"fwd/l0: nobody has said what work run\(fwd/l0\) is"):
        prepare(GRAPH, costs(GRAPH, LAPTOP, {}))


def test_reading_and_writing_at_once_goes_at_the_mixed_bandwidth() -> None:
    rates = {lane.name: lane.bandwidth for lane in LAPTOP.lanes}
    shared = shared_lanes(LAPTOP)
    assert sum(rates[lane] * part for lane, part in shared.items()) == pytest.approx(rates["nvme_mixed"])


def test_what_may_trail_behind_is_one_stored_gradient_or_one_sub_group() -> None:
    assert stored_bytes(GRAPH) == 0
    assert subgroup_bytes(UPDATE) == 16 << 10
