from __future__ import annotations

import json
from typing import Any

import pytest

from bench.step import PHASES, Round, mean, report, rounds_of

GB = 10**9


def step(seconds: float, update: int = 0, alone: float = 1.0) -> dict[str, Any]:
    """A step whose optimizer reads a third of its bytes and takes `alone`."""
    still = {"read": {"param": 0}, "written": {"param": 0}, "hidden": {"nvme_read": 0.0}, "exposed": {"nvme_read": 0.0}}
    phases = {name: {"seconds": (seconds - alone) / 2, **still} for name in PHASES}
    phases["optimizer"] |= {
        "seconds": alone,
        "read": {"param": update // 3},
        "written": {"state": update - update // 3},
    }
    return {"loss": 1.0, "phases": phases}


def a_round(at_once: float = 5.0, late: float = 4.0, alone: float = 2.0, nbytes: int = 4 * GB) -> Round:
    return {
        "inductor": step(3.0),
        "at once": step(at_once, nbytes, alone),
        "late": step(late, nbytes, 0.0),
        "disk": {"bytes": 2 * GB, "seconds": 1.0},
    }


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({}, ""),
        ({"at_once": 5.5}, ""),
        ({"at_once": 5.7}, "step, update at once"),
        ({"late": 4.3}, "step, update late"),
        ({"alone": 2.4}, "optimizer step alone"),
        ({"nbytes": 5 * GB}, "bytes read by it"),
    ],
)
def test_the_medians_decide(change: dict[str, Any], fails: str, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [a_round(**change), a_round(**change), a_round(at_once=99.0, late=99.0, alone=98.0)]
    assert report(rounds, "a title", 4 * GB // 3, 8 * GB // 3) is (not fails)
    said = capsys.readouterr().out.splitlines()
    no = [line for line in said if line.startswith("no")]
    assert bool(no) == bool(fails) and all(fails in line or "bytes" in line for line in no)


def test_the_mean_of_steps() -> None:
    together = mean([step(3.0, 3 * GB), step(5.0, 3 * GB)])
    assert together["phases"]["forward"]["seconds"] == pytest.approx(1.5)
    assert together["phases"]["optimizer"]["read"] == {"param": GB}


def test_rounds_take_turns_and_have_what_is_known_of_a_disk_that_is_held_to_a_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    class Answering:
        def __init__(self, name: str) -> None:
            self.name = name

        def ask(self, command: str) -> dict[str, Any]:
            asked.append(f"{self.name} {command}")
            return step(3.0, 3 * GB)

    children: Any = {name: Answering(name) for name in ("inductor", "at once", "late")}
    done = rounds_of(children, 2, {"disk": {"bytes": GB, "seconds": 1.0}})
    assert asked == [
        f"{name} step" for name in ("late", "at once", "inductor", "inductor", "at once", "late") for _ in "ab"
    ]
    assert [r["disk"] for r in done] == [{"bytes": GB, "seconds": 1.0}] * 2
    assert [len(r) for r in done] == [4, 4] and report(done, "a title", GB, 2 * GB)
    questions = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"question"' in line]
    # An update moves 3 GB, and the disk 1 GB a second.
    assert {q["question"]: (round(q["measured"], 3), round(q["at_most"], 3)) for q in questions} == {
        "step, update at once, over a step in memory": (1.0, 2.3),
        "step, update late, over a step in memory": (1.0, 1.6),
        "optimizer step alone, over the time of disk or memory for it": (0.333, 1.15),
        "bytes read by it, over the bytes of the states": (1.0, 1.05),
        "bytes written by it, over the bytes of the states": (1.0, 1.05),
    }
