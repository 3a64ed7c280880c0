"""bench.curve: its limits, the verdict at each, and what its children answer on a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.curve import MIB, limits, point_of, reason, report
from bench.step import PHASES
from bench.trainer import Trainer
from bench.turns import Ended
from zcompiler.machine.choose import shipped_machine
from zcompiler.machine.file import write_machine

PREDICTED = {"seconds": {"forward": 1.0, "optimizer": 1.0}, "moved": {"nvme_read": 200.0}, "peak": 90 * MIB}


def step(seconds: float = 2.0, nbytes: int = 200, peak: int | None = 300 * MIB) -> dict[str, Any]:
    phases = {name: {"seconds": seconds / 3, "read": {}, "written": {}} for name in PHASES}
    phases["forward"]["read"] = {"param": nbytes}
    return {"phases": phases, "peak": peak}


def test_limits_go_in_equal_ratios_from_the_least_to_where_all_fits() -> None:
    found = limits(4, {"least": 100 * MIB - 5, "most": 799 * MIB + 1})
    assert [n / MIB for n in found] == [100, 200, 400, 800]
    assert limits(10, {"least": 2 * MIB, "most": 3 * MIB}) == [2 * MIB, 3 * MIB]


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"seconds": 2.6}, False),
        ({"nbytes": 100}, False),
        ({"peak": 311 * MIB}, False),
        ({"peak": None}, True),
    ],
)
def test_the_medians_decide(change: dict[str, Any], holds: bool, capsys: pytest.CaptureFixture[str]) -> None:
    zinf = [step(**change), step(**change), step(**{**change, "seconds": 99.0})]
    point = point_of(100 * MIB, PREDICTED, {"zinf": zinf, "inductor": [step(1.0)]})
    assert point["holds"] is holds and point["inductor"] == 1.0 and point["predicted"] == 2.0
    assert report([point], "a title") is holds
    assert ("yes" in capsys.readouterr().out) is holds


def test_a_limit_without_a_step_is_told_and_holds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tail = "  Traceback\n  zcompiler.errors.DoesNotFit: memory=2MiB is too small\n\n  Set TORCHDYNAMO_VERBOSE=1"
    error = reason(Ended("zinf", 1, tail))
    assert error == "zcompiler.errors.DoesNotFit: memory=2MiB is too small"
    assert not report([{"memory": 2 * MIB, "error": error, "holds": False}], "a title")
    assert "2 MiB: zcompiler.errors.DoesNotFit: memory=2MiB is too small" in capsys.readouterr().out


@pytest.mark.parametrize("memory", ["1MiB", "64MiB"])
def test_a_step_is_predicted_whether_states_move_or_not(memory: str, disk: Path, tmp_path: Path) -> None:
    write_machine(shipped_machine("laptop"), tmp_path / "machine.toml")
    trainer = Trainer(
        {
            "side": "zinf",
            "model": "mlp",
            "depth": 4,
            "width": 128,
            "tokens": 8,
            "machine": str(tmp_path / "machine.toml"),
            "options": {"memory": memory, "nvme": str(disk), "compute": "eager"},
        }
    )
    trainer.load()
    ends = trainer.ends()
    assert 0 < ends["least"] < ends["most"] < 2 * MIB
    steps = [trainer.step() for _ in range(4)]
    predicted = trainer.predict()
    moved = sum(sum(steps[-1]["phases"][name][way].values()) for name in PHASES for way in ("read", "written"))
    assert (moved > 0) is (memory == "1MiB") and moved == sum(predicted["moved"].values())
    assert set(predicted["seconds"]) > {"optimizer"} and min(predicted["seconds"].values()) > 0
    assert steps[-1]["peak"] is None or steps[-1]["peak"] > 0
