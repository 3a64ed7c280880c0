"""The benchmark of planning counts what planning takes, and judges it."""

from __future__ import annotations

import logging
import math

import pytest

from bench.planning import MOST, Stages, growth, judged


def logged(handler: Stages, text: str) -> None:
    handler.handle(logging.LogRecord("zinf.stages", logging.DEBUG, "", 0, text, None, None))


def test_the_stages_of_all_tries_are_summed() -> None:
    handler = Stages()
    for text in ("graph0: capture took 1.500 s", "graph0: plan took 0.250 s", "graph0: plan took 0.500 s"):
        logged(handler, text)
    logged(handler, "graph0: passes took 9.000 s")
    assert handler.seconds == {"capture": 1.5, "plan": 0.75}


def test_twice_the_layers_may_take_somewhat_more_than_twice_as_long() -> None:
    assert growth(50, 100) == pytest.approx(1.25 * 2 * math.log(100) / math.log(50))


@pytest.mark.parametrize(("seconds", "holds"), [((1.0, 2.9), True), ((1.0, 3.1), False), ((2.0, MOST + 0.1), False)])
def test_it_holds_when_both_the_time_and_its_growth_do(seconds: tuple[float, float], holds: bool) -> None:
    assert judged((50, 100), seconds) is holds
