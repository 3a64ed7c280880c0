"""What stays in memory when not everything fits, on schedules of layers that no model was captured for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.steps import KIB, MIB, evaluate, layers, planned
from zcompiler.errors import DoesNotFit
from zcompiler.plan.plan import KINDS, Homes, Placement, Plan, describe
from zcompiler.schedule.memory import peak


def plan(sizes: list[int], limit: int, fixed: Placement | None = None, **place: str) -> Plan:
    return planned(layers(sizes, limit), limit, fixed, **place)


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
        "params=host(7)+nvme(1) grads=host optimizer=host(4)+nvme(4)",
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
    assert "5 of 8 units, 5MiB; with l5 run(bwd/l0)@bwd/l0 would hold 14337KiB of 14MiB" in reasons


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


def test_a_gradient_much_larger_than_the_others_stays_in_memory_where_nothing_else_fits() -> None:
    sizes = [24 * MIB, *[MIB] * 30]  # all gradients in memory are 54 MiB; the large one and its copy to be written 48
    limit = 50 * MIB
    found = plan(sizes, limit)
    assert found.placement["l0"] == Homes("nvme", "host", "nvme")
    assert {homes.grads for name, homes in found.placement.items() if name != "l0"} == {"nvme"}
    assert found.peak["host"] <= limit
