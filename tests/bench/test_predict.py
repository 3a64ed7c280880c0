"""The verdict of bench.predict: medians beside predictions."""

from __future__ import annotations

from typing import Any

import pytest

from bench.predict import report
from bench.step import PHASES

GB = 10**9
PREDICTED = {
    "seconds": {"forward": 1.0, "backward": 2.0, "optimizer": 1.0},
    "exposed": {"nvme_read": 0.5},
    "moved": {"nvme_read": 2 * GB, "nvme_write": GB},
}


def step(seconds: float, nbytes: int = 3 * GB) -> dict[str, Any]:
    lanes = {"nvme_read": 0.2, "nvme_write": 0.0}
    read = {"read": {"param": nbytes // 3}, "written": {"param": 0}, "hidden": lanes, "exposed": lanes}
    return {"phases": {name: {"seconds": seconds / 3, **read} for name in PHASES}}


@pytest.mark.parametrize(
    ("measured", "fails"),
    [
        (step(4.0), ""),
        (step(4.9), ""),
        (step(5.1), "late: step"),
        (step(3.1), "late: step"),
        (step(4.0, 4 * GB), "late: moved"),
    ],
)
def test_the_medians_decide(measured: dict[str, Any], fails: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = {"late": [measured, measured, step(99.0)]}
    assert report({"late": PREDICTED}, done, "a title") is (not fails)
    no = [line for line in capsys.readouterr().out.splitlines() if line.startswith("no")]
    assert bool(no) == bool(fails) and all(fails in line for line in no)
