"""What stays in memory when not everything fits, on schedules of layers that no model was captured for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zcompiler.errors import DoesNotFit
from zcompiler.options import Options, Place, parse_options
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import KINDS, Homes, Placement, Plan, describe
from zcompiler.plan.planner import Question, make_plan
from zcompiler.plan.step import PhaseNames, Step
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value

KIB = 1 << 10
MIB = 1 << 20


def layers(sizes: list[int], limit: int, saved: int = KIB) -> Step:
    """A step of layers with parameters of these bytes, each saving an activation for backward."""
    tiers = (Tier("host", limit, True), Tier("nvme", None, False))
    values = [Value("x", "input", "f32", KIB, (256,))]
    forward: list[Region] = []
    backward: list[Region] = []
    made: dict[str, str] = {}
    for i, size in enumerate(sizes):
        name = f"l{i}"
        values += [
            Value(name, "param", "f32", size, home="host"),
            Value(f"a{i}", "act", "f32", saved, (saved // 4,)),
            Value(f"{name}:grad", "grad", "f32", size, home="host"),
            Value(f"{name}:state", "state", "f32", 2 * size, home="host"),
        ]
        made[f"{name}:grad"] = name
        reads = (f"a{i - 1}" if i else "x", name)
        forward.append(Region(f"fwd/{name}", (Op("compute", "run", f"fwd/{name}", reads=reads, writes=(f"a{i}",)),)))
        run = Op("compute", "run", f"bwd/{name}", reads=(f"a{i}", name), writes=(f"{name}:grad",))
        backward.insert(0, Region(f"bwd/{name}", (run, Op("compute", "release", f"a{i}", src="host"))))
    schedule = Schedule("graph0", tiers, tuple(values), (*forward, *backward))
    return Step(schedule, PhaseNames(), PhaseNames(buckets=made))


def options(limit: int, **place: str) -> Options:
    return replace(parse_options({"memory": limit}, environ={"HOME": "/"}), place=Place(**place))


def plan(sizes: list[int], limit: int, fixed: Placement | None = None, **place: str) -> Plan:
    step = layers(sizes, limit)
    names = tuple(f"l{i}" for i in range(len(sizes)))
    asked = Question(lambda p: step.placed(p).schedule, names, step.gradients, fixed or {})
    return make_plan(asked, options(limit, **place), "host", "nvme", evaluate)


def evaluate(schedule: Schedule, pipeline: str) -> Schedule:
    return run_pipeline(schedule, parse_pipeline(pipeline), trial=True)


def moved(plan: Plan, sizes: list[int]) -> int:
    """Bytes that a step moves, by the rule of holding.py."""
    factor: Mapping[str, int] = {"params": 3, "grads": 2, "optimizer": 4}
    return sum(
        factor[kind] * size
        for size, homes in zip(sizes, plan.placement.values(), strict=True)
        for kind in KINDS
        if getattr(homes, kind) == "nvme"
    )


def test_nothing_moves_when_everything_fits() -> None:
    found = plan([MIB] * 4, 64 * MIB)
    assert describe(found.placement) == "params=host grads=host optimizer=host"
    assert not found.uses("nvme")


def test_parameters_stay_first_then_gradients_then_states() -> None:
    sizes = [MIB] * 8
    seen = [describe(plan(sizes, limit * MIB).placement) for limit in (8, 14, 24, 34)]
    assert seen == [
        "params=nvme(5)+host(3) grads=host(4)+nvme(4) optimizer=nvme",
        "params=host grads=host(5)+nvme(3) optimizer=nvme",
        "params=host grads=host optimizer=nvme(5)+host(3)",
        "params=host grads=host optimizer=host",
    ]


def test_a_small_unit_stays_where_a_large_one_does_not_fit() -> None:
    found = plan([8 * MIB, 64 * KIB, 64 * KIB], 20 * MIB)
    assert [homes.optimizer for homes in found.placement.values()] == ["nvme", "host", "host"]


def test_what_is_forced_stays_forced() -> None:
    found = plan([MIB] * 4, 64 * MIB, params="nvme", optimizer="nvme")
    assert describe(found.placement) == "params=nvme grads=host optimizer=nvme"
    found = plan([MIB] * 8, 18 * MIB, grads="host")
    assert {homes.grads for homes in found.placement.values()} == {"host"}


def test_what_an_earlier_graph_placed_stays_there() -> None:
    known = {"l1": Homes("nvme", "nvme", "nvme")}
    found = plan([MIB] * 4, 64 * MIB, known)
    assert [str(homes) for homes in found.placement.values()].count("params=nvme grads=nvme optimizer=nvme") == 1
    assert found.placement["l1"] == known["l1"]


def test_each_kind_has_its_reason_with_numbers() -> None:
    reasons = "\n".join(plan([MIB] * 8, 14 * MIB).reasons)
    assert (
        "not params=host grads=host optimizer=host: 32769KiB at run(bwd/l0)@bwd/l0, 18433KiB over the limit" in reasons
    )
    assert "params held in host: 8 of 8 units, 8MiB" in reasons
    assert "3 of 8 units, 3MiB; with l3 run(bwd/l0)@bwd/l0 would hold 14337KiB of 14MiB" in reasons


def test_too_small_a_limit_is_refused_with_one_that_works() -> None:
    with pytest.raises(DoesNotFit, match=r"12289KiB, at run\(bwd/l0\)@bwd/l0 .* Set memory to at least 13MiB"):
        plan([4 * MIB] * 2, 4 * MIB)
    assert plan([4 * MIB] * 2, 13 * MIB).uses("nvme")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 64).map(lambda n: n * 64 * KIB), min_size=1, max_size=6),
    st.integers(1, 400).map(lambda n: n * 128 * KIB),
)
def test_a_plan_is_within_its_limit_and_more_memory_never_moves_more(sizes: list[int], limit: int) -> None:
    try:
        small = plan(sizes, limit)
    except DoesNotFit:
        return
    step = layers(sizes, limit)
    final = evaluate(step.placed(small.placement).schedule, small.pipeline)
    assert peak(final)["host"][0] == small.peak["host"] <= limit
    assert small == plan(sizes, limit)
    assert moved(plan(sizes, 3 * limit), sizes) <= moved(small, sizes)
