"""bench.curve: its limits, the verdict at each, and what its children answer on a small model."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from bench.curve import MIB, answer, limits, point_of, report
from bench.step import PHASES
from bench.trainer import Trainer
from bench.turns import Ended, reason
from zcompiler.machine.choose import shipped_machine
from zcompiler.machine.file import write_machine
from zcompiler.torch_compat.running import trim_memory

PREDICTED = {
    "seconds": {"forward": 1.0, "optimizer": 1.0}, "moved": {"nvme_read": 200.0}, "peak": 90 * MIB, "others": 200 * MIB
}  # fmt: skip


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
        ({"peak": 260 * MIB}, False),
        ({"peak": None}, True),
    ],
)
def test_the_medians_decide(change: dict[str, Any], holds: bool, capsys: pytest.CaptureFixture[str]) -> None:
    zinf = [step(**change), step(**change), step(**{**change, "seconds": 99.0})]
    point = point_of(100 * MIB, PREDICTED, {"zinf": zinf, "inductor": [step(1.0)]}, 1.0)
    assert point["holds"] is holds and point["inductor"] == 1.0 and point["predicted"] == 2.0
    assert report([point], "a title") is holds
    assert ("yes" in capsys.readouterr().out) is holds


def test_a_machine_that_has_become_slower_since_it_was_measured_is_predicted_so() -> None:
    point = point_of(100 * MIB, PREDICTED, {"zinf": [step(4.0)], "inductor": [step(1.5)]}, 0.75)
    assert (point["drift"], point["predicted"], point["holds"]) == (2.0, 4.0, True)


def test_a_limit_without_a_step_is_told_and_holds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tail = "  Traceback\n  zcompiler.errors.DoesNotFit: memory=2MiB is too small\n\n  Set TORCHDYNAMO_VERBOSE=1"
    error = reason(str(Ended("zinf", 1, tail)))
    assert error == "zcompiler.errors.DoesNotFit: memory=2MiB is too small"
    assert not report([{"memory": 2 * MIB, "error": error, "holds": False}], "a title")
    assert "2 MiB: zcompiler.errors.DoesNotFit: memory=2MiB is too small" in capsys.readouterr().out


def test_all_limits_together_answer_by_the_furthest_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    steps = {"inductor": [step(1.0)]}
    points = [
        {"memory": MIB, "error": "DoesNotFit", "holds": False},
        point_of(100 * MIB, PREDICTED, {**steps, "zinf": [step(1.7, peak=279 * MIB)]}, 1.0),
        point_of(200 * MIB, PREDICTED, {**steps, "zinf": [step(2.2, nbytes=150)]}, 1.0),
        point_of(300 * MIB, {**PREDICTED, "moved": {}}, {**steps, "zinf": [step(1.9, nbytes=0, peak=None)]}, 1.0),
    ]
    answer(points)
    found = {line["question"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    measured = {question: (round(line["measured"], 3), line["holds"]) for question, line in found.items()}
    assert measured == {
        "limits without a step, over 4 limits tried": (0.25, False),
        "step, over what was predicted, the furthest of 4 limits": (0.85, True),
        "bytes moved, over what was predicted, the furthest of 4 limits": (0.75, False),
        "memory held, over what may be, the most of 4 limits": (0.9, True),
        "memory held, over what was predicted, the furthest of 4 limits": (0.962, True),
        "step with memory=100MiB, over one of torch.compile in memory": (1.7, True),
        "step with memory=300MiB, over one of torch.compile in memory": (1.9, True),
    }
    moves = point_of(100 * MIB, {**PREDICTED, "moved": {}}, {**steps, "zinf": [step()]}, 1.0)
    answer([moves])
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["holds"] for line in lines if line["question"].startswith("bytes moved")] == [False]


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
    gc.collect()
    trim_memory()  # what other tests have left: given back later, it would make the peak less than nothing
    trainer.load()
    ends = trainer.ends()
    assert 0 < ends["least"] < ends["most"] < 2 * MIB
    steps = [trainer.step() for _ in range(4)]
    predicted = trainer.predict()
    moved = sum(sum(steps[-1]["phases"][name][way].values()) for name in PHASES for way in ("read", "written"))
    assert (moved > 0) is (memory == "1MiB") and moved == sum(predicted["moved"].values())
    assert set(predicted["seconds"]) > {"optimizer"} and min(predicted["seconds"].values()) > 0
    assert steps[-1]["peak"] is None or steps[-1]["peak"] > 0
