"""What the planner makes of three captured models at three limits, as text."""

from __future__ import annotations

import difflib

import pytest

from tests.plan.goldens import FOLDER, MODELS, finished, limits, text
from zcompiler.schedule.memory import peak
from zcompiler.schedule.simulate.program import prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.verify import verify


@pytest.mark.parametrize("name", ["least", "middle", "all"])
@pytest.mark.parametrize("model", MODELS)
def test_the_plan_and_the_schedule_are_the_committed_ones(model: str, name: str) -> None:
    now = text(*finished(model, limits(model)[name]))
    file = FOLDER / f"{model}-{name}.zsched"
    lines = (file.read_text().splitlines(keepends=True), now.splitlines(keepends=True))
    if diff := "".join(difflib.unified_diff(*lines, f"{file.name} (committed)", "now")):
        pytest.fail(f"{diff}\nIf this is what it should be: python -m tests.plan.goldens accept", pytrace=False)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_stays_under_each_limit_and_less_moves_the_higher_it_is(model: str) -> None:
    moved = []
    for limit in limits(model).values():
        plan, schedule = finished(model, limit)
        assert verify(schedule) == []
        ran = simulate(prepare(schedule, lambda _, op: 1.0 if op.kind == "run" else 0.5))
        assert ran.peak["host"] <= peak(schedule)["host"][0] <= limit
        moved.append(plan.moved)
    assert moved[0] > moved[1] > moved[2] == 0
    assert not any(op.kind in ("read", "write") for _, op in schedule.ops())
