"""No schedule is made twice for one plan: different starts often lead to one placement."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.plan import steps
from tests.plan.steps import KIB, layers, planned
from zcompiler.errors import DoesNotFit
from zcompiler.schedule.model import Schedule


def test_a_placement_goes_through_the_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, plans = random.Random(1), 0
    made: Counter[tuple[str, str]] = Counter()
    evaluate = steps.evaluate

    def counted(schedule: Schedule, pipeline: str) -> Schedule:
        made[str([(v.name, v.home) for v in schedule.values]), pipeline] += 1
        return evaluate(schedule, pipeline)

    monkeypatch.setattr(steps, "evaluate", counted)
    while plans < 20:
        sizes = [64 * KIB * draw.randint(4, 40) for _ in range(4)]
        limit = int(draw.uniform(0.3, 0.9) * 4 * sum(sizes))
        made.clear()
        try:
            planned(layers(sizes, limit), limit)
        except DoesNotFit:
            continue
        plans += 1
        assert made and max(made.values()) == 1
