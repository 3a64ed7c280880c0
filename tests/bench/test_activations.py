"""The answer of bench.activations: medians of what each side held and took."""

from __future__ import annotations

from typing import Any

import pytest

from bench.activations import answer_of
from bench.step import PHASES


def step(seconds: float, peak: int) -> dict[str, Any]:
    return {"peak": peak, "phases": {name: {"seconds": seconds / 3} for name in PHASES}}


def test_what_falls_is_a_part_of_the_activations_and_time_is_beside_the_shorter_of_the_two() -> None:
    steps = {
        "kept": [step(3, 1000), step(3, 1000), step(9, 9000)],
        "recomputed": [step(6, 500)] * 3,
        "offloaded": [step(5, 400)] * 3,
        "decided": [step(4, 400), step(4.5, 450), step(9, 460)],
    }
    answer = answer_of(steps, 1000)
    assert answer == {"falls": pytest.approx(0.55), "slower": pytest.approx(0.9)}
