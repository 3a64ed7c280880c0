"""What a machine says about seconds: exact at the figures it was given, rising with the work in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machine.described import SMALL, machines, matmul_rates
from zcompiler.machine.file import parse_machine
from zcompiler.machine.machine import Machine, MatmulRates
from zcompiler.machine.work import Matmul, Work

MACHINE = parse_machine(SMALL, "text")
SIDES = st.integers(1, 10**6)


def seconds(**matmul: int) -> float:
    return MACHINE.compute_seconds(Work((Matmul("f32", **matmul),)))


def test_a_square_matmul_takes_what_its_rate_says() -> None:
    assert seconds(m=10, n=10, k=10) == pytest.approx(2000 / 1e9)
    assert seconds(m=100, n=100, k=100) == pytest.approx(2e6 / 10e9)


def test_in_between_the_rate_is_the_geometric_mean() -> None:
    assert MACHINE.matmuls[0].rate(10**1.5) == pytest.approx(10**9.5)


def test_outside_the_points_the_nearest_rate_holds() -> None:
    assert seconds(m=5, n=5, k=5) == pytest.approx(250 / 1e9)
    assert seconds(m=1000, n=1000, k=1000) == pytest.approx(2e9 / 10e9)


def test_a_batch_is_as_fast_as_one_matmul_with_as_many_operations() -> None:
    assert seconds(m=20, n=20, k=20, batch=125) == pytest.approx(seconds(m=100, n=100, k=100))
    assert seconds(m=100, n=100, k=100, count=3) == pytest.approx(3 * seconds(m=100, n=100, k=100))


def test_a_skinny_matmul_takes_as_long_as_its_operands() -> None:
    assert seconds(m=1, n=1000, k=1000) == pytest.approx(4 * (1000 + 1000 * 1000 + 1000) / 4e9)


def test_a_dtype_without_rates_counts_as_float32_and_a_wider_one_as_slower() -> None:
    square = {
        dtype: MACHINE.compute_seconds(Work((Matmul(dtype, 100, 100, 100),))) for dtype in ("f32", "bf16", "f64", "c64")
    }
    assert square["bf16"] == square["c64"] == square["f32"] == square["f64"] / 2


def test_attention_has_a_rate_of_its_own_where_it_is_known() -> None:
    known = parse_machine(SMALL + '[attention]\nf32 = "5GFLOP/s"\n', "text")
    work = {dtype: Work((Matmul(dtype, 100, 100, 100, attention=True),)) for dtype in ("f32", "bf16")}
    assert known.compute_seconds(work["f32"]) == pytest.approx(2e6 / 5e9)
    assert known.compute_seconds(work["bf16"]) == pytest.approx(2e6 / 10e9), "as a matmul's"
    assert MACHINE.compute_seconds(work["f32"]) == pytest.approx(2e6 / 10e9)


def test_scores_inside_a_kernel_of_attention_are_not_moved() -> None:
    known = parse_machine(SMALL + '[attention]\nf32 = "500GFLOP/s"\n', "text")
    scores = Matmul("f32", 512, 512, 64, attention=True)
    assert known.compute_seconds(Work((scores,))) == pytest.approx(scores.flops / 500e9)


def test_bytes_and_kernels_add_to_the_matmuls() -> None:
    assert MACHINE.compute_seconds(Work()) == 0
    both = MACHINE.compute_seconds(Work((Matmul("f32", 100, 100, 100),), moved=4 * 10**9, kernels=100))
    assert both == pytest.approx(2e6 / 10e9 + 1 + 100 * 10e-6)


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    assert MACHINE.lane_seconds("nvme_write", 500 * 10**6) == pytest.approx(1.002)
    with pytest.raises(LookupError, match="machine small has no lane h2d, only nvme_read, nvme_write, nvme_mixed"):
        MACHINE.lane_seconds("h2d", 1)


def test_a_fused_update_has_a_rate_of_its_own() -> None:
    assert MACHINE.update_seconds(10**9) == 2 and MACHINE.update_seconds(10**9, fused=True) == 0.5


@given(matmul_rates("f32"), SIDES, SIDES)
def test_a_larger_matmul_never_takes_less_time(rates: MatmulRates, one: int, other: int) -> None:
    small, large = sorted((one, other))
    assert small**3 / rates.rate(small) <= large**3 / rates.rate(large) * (1 + 1e-9)


@given(machines(), st.integers(0, 10**15), st.integers(0, 10**15))
def test_more_bytes_never_take_less_time(machine: Machine, one: int, other: int) -> None:
    small, large = sorted((one, other))
    for lane in machine.lanes:
        assert machine.lane_seconds(lane.name, small) <= machine.lane_seconds(lane.name, large)
    assert machine.compute_seconds(Work(moved=small)) <= machine.compute_seconds(Work(moved=large))
