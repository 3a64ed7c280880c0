from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from zcompiler.cli.demo_report import Side, allowed_peak, as_json, loss_gap, report

MIB = 2**20


def heard(name: str, losses: list[float], peak: int, **done: Any) -> Side:
    side = Side(name)
    side.hear({"base": 300 * MIB, "parameters": 1000})
    for step, loss in enumerate(losses):
        side.hear({"step": step, "loss": loss, "seconds": 10.0 if step == 0 else float(step)})
    assert not side.done
    side.hear({"done": {"peak": peak, "steady": True, "before": None, "after": None, **done}})
    assert side.done
    return side


def traffic(read: dict[str, int], written: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"read": read, "written": written}


def zinf(peak: int = 1500 * MIB) -> Side:
    before = traffic({"param": 100 * MIB}, {"state": 50 * MIB})
    after = traffic({"param": 100 * MIB + 3 * 512 * MIB, "state": 3 * 256 * MIB}, {"state": 50 * MIB + 3 * 1024 * MIB})
    return heard("zinf", [2.0, 1.5, 1.0, 0.5001, 0.25], peak, before=before, after=after)


def plain() -> Side:
    return heard("plain", [2.0, 1.5, 1.0, 0.5, 0.25], 3372 * MIB)


def text(*sides: Side, limit: int = 1280 * MIB) -> str:
    out = io.StringIO()
    report(Console(file=out, width=100), sides, limit)
    return out.getvalue()


def row(shown: str, start: str) -> list[str]:
    (line,) = (line for line in shown.splitlines() if line.strip(" │").startswith(start))
    return [cell.strip() for cell in line.strip(" │").split("│")]


def test_what_a_side_took_is_counted_from_before_its_model_and_after_the_warm_steps() -> None:
    side = zinf()
    assert side.memory == 1200 * MIB
    assert side.per_step("read") == {"param": 512 * MIB, "state": 256 * MIB}
    assert side.per_step("written") == {"state": 1024 * MIB}
    assert plain().per_step("read") is None


def test_the_tables() -> None:
    shown = text(plain(), zinf())
    assert row(shown, "4 ") == ["4", "0.500000", "0.500100"]
    assert "plain and zinf: 2.0e-04" in shown
    assert row(shown, "peak memory")[1:] == ["3.00 GiB", "1.17 GiB"]
    assert row(shown, "nvme read a step")[1:] == ["-", "0.75 GiB"]
    assert row(shown, "nvme written a step")[1:] == ["-", "1.00 GiB"]
    assert row(shown, "median step")[1:] == ["3.00 s", "3.00 s"]
    assert row(shown, "first step")[1:] == ["10.00 s", "10.00 s"]
    assert "kept" in shown and "be reset" not in shown


def test_a_third_side_has_a_column_and_a_gap_of_its_own() -> None:
    shown = text(plain(), zinf(), heard("inductor", [2.0, 1.5, 1.0, 0.5, 0.2], 3000 * MIB))
    assert row(shown, "5 ") == ["5", "0.250000", "0.250000", "0.200000"]
    assert "plain and inductor: 2.0e-01" in shown


def test_a_limit_that_was_not_kept_is_said() -> None:
    most = 300 * MIB + allowed_peak(1280 * MIB)
    assert "kept" in text(plain(), zinf(most))
    assert "exceeded" in text(plain(), zinf(most + 1))


def test_a_peak_that_could_not_be_reset_is_said() -> None:
    side = zinf()
    side.steady = False
    assert "does not let it be reset" in text(plain(), side)


def test_a_loss_that_is_no_number_is_not_hidden() -> None:
    assert loss_gap([1.0, 2.0], [1.1, 2.0]) == pytest.approx(0.1)
    assert math.isnan(loss_gap([1.0, 2.0, 3.0], [1.0, math.nan, 3.0]))
    with pytest.raises(ValueError, match="shorter"):
        loss_gap([1.0, 2.0], [1.0])


def test_all_that_was_measured_can_be_json() -> None:
    read_back = json.loads(json.dumps(as_json([plain(), zinf()], {"steps": 5})))
    assert read_back["settings"] == {"steps": 5}
    assert [side["name"] for side in read_back["sides"]] == ["plain", "zinf"]
    assert read_back["sides"][1]["losses"][3] == 0.5001
