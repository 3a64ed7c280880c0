from __future__ import annotations

from typing import Any

import pytest

from bench.step import PHASES, Round, bound, report

GB = 10**9


def step(seconds: float, update: int = 0) -> dict[str, Any]:
    """A step of three equal phases; the optimizer reads a third of its bytes."""
    still = {"read": {"param": 0}, "written": {"param": 0}, "hidden": {"nvme_read": 0.0}, "exposed": {"nvme_read": 0.0}}
    phases = {name: {"seconds": seconds / 3, **still} for name in PHASES}
    phases["optimizer"] |= {"read": {"param": update // 3}, "written": {"state": update - update // 3}}
    return {"loss": 1.0, "phases": phases}


def a_round(memory: float, zinf: float) -> Round:
    return {"inductor": step(memory), "zinf": step(zinf, 4 * GB), "disk": {"bytes": 2 * GB, "seconds": 1.0}}


def test_a_step_may_take_its_computing_and_its_bytes() -> None:
    answers = a_round(memory=3.0, zinf=5.0)
    assert bound(answers["inductor"], answers["zinf"], answers["disk"]) == pytest.approx(3 + 1.3 * 4 / 2)


@pytest.mark.parametrize(("zinf", "holds"), [(5.5, True), (5.7, False)])
def test_the_medians_decide(zinf: float, holds: bool, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [a_round(3.0, zinf), a_round(3.0, zinf), a_round(3.0, 99.0)]
    assert report(rounds, "a title") is holds
    assert ("yes zinf's step" in capsys.readouterr().out) is holds
