"""`zinf explain`: a target and a file, as text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.test_app import run_main
from tests.compare.texts import GOLDENS, ONE_RANK, TIMES, golden
from zcompiler.advise.bare import explain_schedule
from zcompiler.advise.peaks import peaks_of
from zcompiler.cli.app import app
from zcompiler.machine.choose import shipped_machine
from zcompiler.schedule.memory import peak
from zcompiler.schedule.text import parse_schedule

MODEL = """
import torch

def model():
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))

def inputs():
    return (torch.zeros(32, 256),)
"""
FIXED = ("--memory", "3MiB", "--machine", "laptop", "--compute", "eager")


def explain(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return str(tmp_path / "model.py")


def test_a_target_is_explained_and_json_has_the_same_figures(model: str) -> None:
    text = explain(model, *FIXED)
    assert "Where states rest\n" in text and "What would help, by planning again\n" in text
    assert max(map(len, text.splitlines())) <= 80
    found = json.loads(explain(model, *FIXED, "--json"))
    assert found["now"]["seconds"] == pytest.approx(found["step"]["seconds"])
    assert [peak["schedule"] for peak in found["peaks"]] == ["graph0", "update"]
    assert found["helpful"][0]["after"]["seconds"] < found["now"]["seconds"]


def test_no_tries_is_a_plan_and_no_more(model: str) -> None:
    found = json.loads(explain(model, *FIXED, "--no-tries", "--json"))
    assert found["helpful"] == found["others"] == [] and found["now"] is not None


def test_a_file_is_explained_by_its_text_alone(tmp_path: Path) -> None:
    file = tmp_path / "graph.zsched"
    file.write_text((TIMES / "graph.zsched").read_text())
    text = explain(str(file))
    assert "A text has no FLOPs: compute is an estimate from its bytes and shapes." in " ".join(text.split())
    assert "What may help (this was not planned again)\n" in text and "What would help" not in text


def test_the_peaks_of_every_golden_add_up() -> None:
    schedules = [golden(path) for path in sorted(GOLDENS.glob("*.zsched"))]
    schedules += [parse_schedule((TIMES / f"{name}.zsched").read_text()) for name in ("graph", "update")]
    assert len(schedules) > 4
    for schedule in schedules:
        found = {one.tier: one for one in peaks_of(schedule)}
        assert {tier: (one.nbytes, one.at) for tier, one in found.items()} == peak(schedule)
        assert all(sum(h.nbytes for h in one.holdings) == one.nbytes for one in found.values())


def test_a_machine_without_a_lane_gives_no_times() -> None:
    two = golden(GOLDENS / "two-ranks-on-a-cpu.zsched")
    found = explain_schedule(two, shipped_machine("laptop"))
    assert found.step is None and found.peaks and "Where the time goes" not in str(found)


def test_a_file_that_is_no_schedule_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "explain", "gone.zsched") == 2
    assert "gone.zsched: No such file or directory" in capsys.readouterr().err


def test_torch_is_not_imported_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "one.zsched").write_text(str(golden(ONE_RANK)))
    code = "import sys; from zcompiler.cli.explain import explain; from zcompiler.cli.asked import Asked; "
    code += f"explain({str(tmp_path / 'one.zsched')!r}, Asked(), tries=True, as_json=False); "
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
