"""The gate: what makes a step worse, and that it names the op which did."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compare.texts import GOLDENS, ONE_RANK, TIMES, golden, in_words
from tests.schedule.test_simulate import steps, updates
from zcompiler.compare.difference import compare
from zcompiler.compare.gate import TOLERANCES, Finding, judge, parse_tolerances
from zcompiler.compare.metrics import Metric, Side, measure
from zcompiler.compare.numbers import shown
from zcompiler.compare.sides import compare_sides
from zcompiler.compare.times import estimated_work, reference_machines, timeline
from zcompiler.errors import BadInput
from zcompiler.machine.work import Matmul
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.schedule.text import parse_schedule
from zcompiler.schedule.verify import verify
from zcompiler.schedule.waits import canonical_waits

STEP = golden(ONE_RANK)
ACTIVATIONS = GOLDENS.parent / "offload-activations" / "written-after-forward-and-read-before-backward.zsched"


def judged(old: Schedule, new: Schedule) -> dict[str, Finding]:
    assert verify(old) == verify(new) == []
    return {str(f.metric): f for f in judge(compare_sides(Side({"step": old}), Side({"step": new})))}


def worse(old: Schedule, new: Schedule) -> dict[str, str]:
    return {name: f.because for name, f in judged(old, new).items() if f.verdict == "worse"}


def with_ops(schedule: Schedule, region: str, change: dict[int, tuple[Op, ...]]) -> Schedule:
    """The schedule with ops of one region replaced, by index, and the waits that follow."""
    ops = {r.name: list(r.ops) for r in schedule.regions}
    ops[region] = [new for i, op in enumerate(ops[region]) for new in change.get(i, (op,))]
    schedule = replace(schedule, regions=tuple(Region(name, tuple(own)) for name, own in ops.items()))
    waits = iter(canonical_waits(schedule))
    regions = (Region(r.name, tuple(replace(op, after=next(waits)) for op in r.ops)) for r in schedule.regions)
    return replace(schedule, regions=tuple(regions))


def test_without_prefetch_computing_waits_for_reads_that_stood_further_up() -> None:
    plain = golden(ONE_RANK, without="prefetch-reads")
    assert list(worse(plain, STEP)) == ["peak host (step)"]
    found = worse(STEP, plain)
    assert list(found) == ["exposed on dgx-2", "exposed on h200-server", "exposed on laptop"]
    assert found["exposed on laptop"].endswith(" for read l1 in bwd/l1, which stood in bwd/l2 before")


@pytest.mark.parametrize("path", sorted(GOLDENS.glob("*.zsched")), ids=lambda p: p.stem)
def test_without_keeping_the_last_unit_it_is_moved_once_more(path: Path) -> None:
    found = worse(golden(path), golden(path, without="keep-last-unit"))
    assert found["nvme_read"] == "read l2 in bwd/l2 was not there before"
    assert found.get("comm", "all_gather l2 in bwd/l2 was not there before").startswith("all_gather l2 in bwd/l2")


def test_without_offloading_an_activation_is_what_the_peak_holds_more() -> None:
    found = worse(golden(ACTIVATIONS), golden(ACTIVATIONS, without="offload-activations"))
    said = "at run(bwd/l1)@bwd/l1, held more: s0:full (+2 KiB, by run fwd/l0 in fwd/l0)"
    assert found == {"peak host (step)": said}


def test_one_more_read_a_layer_names_the_first_and_counts_the_rest() -> None:
    plain = golden(ONE_RANK, without="prefetch-reads")
    more = plain
    for region in ("fwd/l0", "fwd/l1", "fwd/l2"):
        ops = next(r.ops for r in more.regions if r.name == region)
        read = next(op for op in ops if op.kind == "read")
        twice = (read, replace(read, lane="nvme_read", kind="release", form="full", src="host", dst=""), read)
        more = with_ops(more, region, {ops.index(read): twice})
    assert worse(plain, more)["nvme_read"] == "read l0 in fwd/l0 was not there before; and 2 more, 4 KiB together"


@pytest.mark.parametrize("part", [100, 1000])
def test_a_peak_that_is_a_hundredth_or_a_thousandth_higher_is_worse(part: int) -> None:
    ops = next(r.ops for r in STEP.regions if r.name == "bwd/l2")
    run = next(op for op in ops if op.kind == "run")
    more = 13 * 1024 // part
    grown = with_ops(STEP, "bwd/l2", {ops.index(run): (replace(run, work=run.work + more),)})
    assert worse(STEP, grown) == {"peak host (step)": f"at run(bwd/l2)@bwd/l2, held more: temporaries (+{more} B)"}
    assert judged(grown, STEP)["peak host (step)"].verdict == "better"


def test_other_names_and_another_order_of_the_header_change_no_figure() -> None:
    text = str(STEP).replace("x1", "addmm").replace("l2", "head")
    other = parse_schedule(text)
    other = replace(other, values=other.values[::-1])
    assert {f.verdict for f in judged(STEP, other).values()} == {"same", "shown"}


def test_a_run_and_a_region_more_are_worse() -> None:
    last = STEP.regions[-1]
    more = Region("bwd/more", (Op("compute", "run", "bwd/more", reads=("y",)),))
    found = worse(STEP, replace(STEP, regions=(*STEP.regions[:-1], last, more)))
    assert found["regions"] == "bwd/more was not there before"
    assert found["runs"] == "run bwd/more in bwd/more was not there before"


def test_a_graph_more_is_worse_and_named() -> None:
    old, new = Side({"graph0": STEP}), Side({"graph0": STEP, "graph1": STEP})
    found = {str(f.metric): f.because for f in judge(compare_sides(old, new)) if f.verdict == "worse"}
    assert found["graphs"] == "graph graph1 was not there before"
    assert found["nvme_read"] == "read l0 in fwd/l0 of graph1 was not there before; and 4 more, 8 KiB together"
    assert found["peak host (graph1)"].endswith("the schedule graph1 was not there before")


def test_compiled_regions_are_judged_only_where_both_sides_know_them() -> None:
    def verdict(before: int | None, after: int | None) -> str:
        found = judge(compare_sides(Side({"step": STEP}, before), Side({"step": STEP}, after)))
        return next((f.verdict for f in found if f.metric.of == "compiled"), "absent")

    assert verdict(2, 3) == "worse" and verdict(2, 2) == "same" and verdict(3, 2) == "better"
    assert verdict(None, 3) == "shown" and verdict(None, None) == "absent"


@pytest.mark.parametrize("path", sorted(GOLDENS.glob("*.zsched")), ids=lambda p: p.stem)
def test_a_step_is_computing_and_what_is_exposed(path: Path) -> None:
    schedule = golden(path)
    metrics = measure(Side({"step": schedule}))
    machines = [m for m in reference_machines() if Metric("step", m.name) in metrics]
    assert len(machines) >= 1
    for machine in machines:
        busy = round(timeline(schedule, machine).busy["compute"] * 1e9)
        exposed, step = (metrics[Metric(kind, machine.name)] for kind in ("exposed", "step"))
        assert exposed > 0 and exposed + busy == pytest.approx(step, abs=2)


def test_an_op_that_only_waits_longer_is_named_with_the_one_before_it_that_is_new() -> None:
    more = Value("more", "param", "f32", 1 << 20, (512, 512), home="nvme")
    read = Op("nvme_read", "read", "more", "shard", "nvme", "host")
    free = Op("nvme_read", "release", "more", "full", "host")
    old = replace(golden(ONE_RANK, without="prefetch-reads"), tiers=(Tier("host", None, True), Tier("nvme")))
    ops = next(r.ops for r in old.regions if r.name == "fwd/l1")
    changed = {0: (read, ops[0]), len(ops) - 1: (ops[-1], free)}
    said = worse(old, with_ops(replace(old, values=(*old.values, more)), "fwd/l1", changed))["exposed on laptop"]
    assert said.startswith("computing waits 0.") and said.endswith(
        " ms) for read l1 in fwd/l1, behind read more in fwd/l1, which was not there before"
    )


def in_shape(schedule: Schedule, shape: tuple[int, int]) -> Schedule:
    return replace(schedule, values=tuple(replace(v, shape=shape) for v in schedule.values))


def test_waiting_longer_is_no_loss_where_the_step_takes_no_longer() -> None:
    long = in_shape(STEP, (80000, 32))
    found = judged(long, STEP)
    assert found["exposed on laptop"].after > 1.02 * found["exposed on laptop"].before
    assert found["exposed on laptop"].verdict == "shown" and worse(long, STEP) == {}


def test_an_update_that_moves_more_is_named_with_its_schedule() -> None:
    texts = [(TIMES / f"{name}.zsched").read_text() for name in ("graph", "update")]
    graph, update = map(parse_schedule, texts)
    grown = parse_schedule(texts[1].replace("l1:state state f32 8KiB", "l1:state state f32 16KiB"))
    old, new = Side({"graph0": graph, "update": update}), Side({"graph0": graph, "update": grown})
    found = {str(f.metric): f.because for f in judge(compare_sides(old, new)) if f.verdict == "worse"}
    assert found["nvme_write"] == "write l1:state in update/l1 of update moves 16 KiB, was 8 KiB"
    assert "peak host (graph0)" not in found and "l1:state:full (+8 KiB, by read" in found["peak host (update)"]


@given(old=st.one_of(steps(), updates()), new=st.one_of(steps(), updates()), mixed=st.randoms())
@settings(max_examples=25)
def test_of_any_two_schedules_an_op_is_named_for_what_is_worse_and_names_can_be_exchanged(
    old: Schedule, new: Schedule, mixed: Random
) -> None:
    compared = compare_sides(Side({"graph0": old}), Side({"graph0": new}))
    for finding in judge(compared):
        if finding.verdict == "worse" and finding.metric.of != "graphs":
            assert (
                re.search(r"[(+]|was not there before|was \d", finding.because) and "no single" not in finding.because
            )
    assert compared.equal == (compare(new, old).changes == ())
    names = [v.name for v in old.values]
    assert compare(old, in_words(old, dict(zip(names, mixed.sample(names, len(names)), strict=True)))).changes == ()


def test_a_tolerance_lets_that_much_through() -> None:
    compared = compare_sides(Side({"s": STEP}), Side({"s": golden(ONE_RANK, without="keep-last-unit")}))
    by_default, by_twenty, by_nineteen = (
        {str(f.metric): f for f in judge(compared, parse_tolerances(given))}
        for given in ((), ("bytes=20%", "exposed=50%"), ("bytes=19.9%",))
    )
    assert by_default["nvme_read"].verdict == by_nineteen["nvme_read"].verdict == "worse"
    assert by_twenty["nvme_read"] == Finding(Metric("bytes", "nvme_read"), 10240, 12288, 12288, "within")
    assert by_twenty["exposed on laptop"].verdict == "within"
    assert parse_tolerances(["exposed=2.5%"])["exposed"] == Fraction(1, 40)
    assert parse_tolerances(())["exposed"] == TOLERANCES["exposed"] == Fraction(1, 50)


def test_what_was_measured_may_rise_by_half_and_is_judged_only_where_both_sides_know_it() -> None:
    verdicts = []
    for before, after in ((1000, 1500), (1000, 1501), (1000, 400), (None, 9000), (9000, None)):
        sides = [Side({"step": STEP}, measured={} if n is None else {"a ratio": n}) for n in (before, after)]
        (found,) = [one for one in judge(compare_sides(*sides)) if one.metric.kind == "measured"]
        assert str(found.metric) == "measured a ratio" and shown(found.metric, 1630) == "1.630"
        verdicts.append((found.verdict, bool(found.because)))
    assert verdicts == [("within", False), ("worse", True), ("better", False), ("shown", False), ("shown", False)]


@pytest.mark.parametrize("text", ["bytes", "bytes=1", "bytes=-1%", "byte=1%", "step=1%", "peak=1 %"])
def test_a_tolerance_that_is_none_is_refused(text: str) -> None:
    said = "write KIND=PERCENT%, such as bytes=1%; without it: bytes=0%, peak=0%, exposed=2%, counts=0%, measured=50%"
    with pytest.raises(BadInput, match=said) as refused:
        parse_tolerances([text])
    assert ("did you mean" in str(refused.value)) == text.startswith("byte=")


def test_work_is_estimated_from_parameters_rows_and_bytes() -> None:
    forward, backward = (next(op for _, op in STEP.ops() if op.value == name) for name in ("fwd/l0", "bwd/l0"))
    work = estimated_work(STEP, forward)
    assert work.matmuls == (Matmul("f32", 8, 22, 23),), "512 elements, as square as they can be"
    assert (work.moved, work.made, work.kernels) == (4096, 1024, 1)
    assert [m.count for m in estimated_work(STEP, backward).matmuls] == [2]


def test_no_time_is_told_on_a_machine_without_the_lanes_and_none_of_a_schedule_that_breaks_rules() -> None:
    def machines(schedule: Schedule) -> set[str]:
        return {metric.of for metric in measure(Side({"step": schedule})) if metric.kind == "step"}

    assert machines(STEP) == {"laptop", "h200-server", "dgx-2"}
    assert machines(golden(GOLDENS / "three-tiers.zsched")) == {"h200-server", "dgx-2"}
    broken = replace(STEP, regions=(replace(STEP.regions[0], ops=STEP.regions[0].ops[1:]), *STEP.regions[1:]))
    assert verify(broken) and machines(broken) == set()
