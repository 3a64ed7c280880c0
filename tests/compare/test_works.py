"""The work of runs in a base: reads back, decides the times, and counts only where both sides know it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.texts import ONE_RANK, golden
from zcompiler.compare.base import format_base, parse_base
from zcompiler.compare.metrics import Metric, Side, measure
from zcompiler.compare.sides import compare_sides
from zcompiler.compare.works import format_work, parse_work
from zcompiler.machine.work import Matmul, Work

STEP = golden(ONE_RANK)
HEAVY = Work((Matmul("f32", 4096, 4096, 4096),), 1 << 20, 3, 0)
WORKS = {"step": {op.value: HEAVY for _, op in STEP.ops() if op.kind == "run"}}
NUMBERS = st.integers(1, 1 << 40)
MATMULS = st.builds(Matmul, st.sampled_from(["f32", "bf16", "f8e4m3"]), *[NUMBERS] * 5, st.booleans())


@given(st.builds(Work, st.lists(MATMULS, max_size=3).map(tuple), *(st.integers(0, 1 << 40) for _ in range(3))))
def test_a_work_reads_back(work: Work) -> None:
    assert parse_work(format_work(work)) == work


def test_it_is_a_line_to_read() -> None:
    matmuls = (Matmul("f32", 32, 1024, 512, 8, 2), Matmul("bf16", 1, 2, 3), Matmul("f32", 4, 4, 2, attention=True))
    text = "f32[32,1024,512]*8x2 bf16[1,2,3] attention:f32[4,4,2] moved=1MiB kernels=3 made=1.5KiB"
    assert format_work(Work(matmuls, 1 << 20, 3, 1536)) == text


@pytest.mark.parametrize("text", ["f32[1,2]", "moved=1", "kernels=one", "speed=1KiB", "f32[1,2,3]x", "attention:f32"])
def test_what_is_no_work_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_work(text)


def test_a_base_keeps_it_and_times_follow_from_it() -> None:
    side = Side({"step": STEP}, works=WORKS)
    assert parse_base(format_base(side), "base.json") == side
    step = Metric("step", "laptop")
    assert measure(side)[step] > 10 * measure(Side({"step": STEP}))[step]


def test_a_side_of_text_alone_is_compared_by_estimates_on_both() -> None:
    compared = compare_sides(Side({"step": STEP}, works=WORKS), Side({"step": STEP}))
    assert compared.before == compared.after == measure(Side({"step": STEP}))
    both = compare_sides(Side({"old": STEP}, works={"old": WORKS["step"]}), Side({"step": STEP}, works=WORKS))
    assert both.before == both.after == measure(Side({"step": STEP}, works=WORKS))
