"""`zinf trace` runs a script as Python would and records the steps asked for; `zinf report` makes its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from zcompiler.cli.app import app
from zcompiler.errors import ZinfError
from zcompiler.training.trace.steps import Steps, Window

SCRIPT = """
import sys

import torch

torch._dynamo.reset()
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
place = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
options = {"memory": "32MiB", "nvme": sys.argv[1], "compute": "eager", "place": place}
compiled = torch.compile(model, backend="zinf", options=options)
optimizer = torch.optim.AdamW(model.parameters())
"""
LOOP = """
for _ in range(int(sys.argv[2])):
    compiled(torch.ones(4, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def zinf(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def written(folder: Path, loop: str = LOOP) -> Path:
    script = folder / "train.py"
    script.write_text(SCRIPT + loop)
    return script


def phases(file: Path) -> list[str]:
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    own = [e for e in events if e["ph"] == "X" and e["cat"] == "phases" and e["pid"] == 1]
    return [e["name"] for e in sorted(own, key=lambda e: e["ts"]) if e["args"]["step"] < 2]


def test_the_third_and_fourth_steps_are_recorded_and_made_a_page(folder: Path, disk: Path) -> None:
    argv, path = sys.argv, list(sys.path)
    result = zinf("trace", written(folder), disk, 5)
    assert (result.exit_code, sys.argv, sys.path) == (0, argv, path), result.output
    assert result.stderr.startswith("trace.json: open it at ui.perfetto.dev")
    # The update of a step goes on with the next forward: that of the second with the third.
    assert phases(folder / "trace.json") == ["update", "fwd", "bwd", "update"] * 2
    assert json.loads((folder / "trace.json").read_text())["zinf"]["first"] == 3
    result = zinf("report", "trace.json")
    assert (result.exit_code, result.stderr) == (0, "report.html: open it in a browser\n")
    assert "2 steps (3 to 4)" in (folder / "report.html").read_text()


def test_a_script_without_an_optimizer_has_a_step_a_backward(folder: Path, disk: Path) -> None:
    loop = "for _ in range(3):\n    compiled(torch.ones(4, 32)).sum().backward()\n"
    result = zinf("report", "--steps", "2", "-o", "page.html", written(folder, loop), disk)
    assert result.exit_code == 0, result.output
    assert "1 step (number 2)" in (folder / "page.html").read_text()
    assert list(folder.glob("*.json")) == []


def test_of_a_script_that_fails_there_is_what_it_did_and_its_own_traceback(
    folder: Path, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = zinf("trace", "--steps", "2:9", written(folder, LOOP + 'raise KeyError("mine")\n'), disk, 3)
    assert result.exit_code == 1
    assert 'raise KeyError("mine")' in result.stderr + capfd.readouterr().err
    assert "the script ended after 3 steps, before step 9" in result.stderr
    assert phases(folder / "trace.json").count("bwd") == 2


def test_the_status_of_a_script_is_that_of_the_command(folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit(7)")
    assert zinf("trace", "train.py").exit_code == 7
    assert not (folder / "trace.json").exists()


def test_a_script_without_zinf_is_an_error_that_says_so(folder: Path) -> None:
    (folder / "train.py").write_text("import sys; assert sys.argv[1:] == ['--lr', '3']")
    result = zinf("trace", "train.py", "--lr", "3")
    assert isinstance(result.exception, ZinfError)
    assert str(result.exception) == "nothing was recorded: 0 steps were made, and step 3 was to be the first"


def test_a_file_that_is_no_trace_of_zinf_is_refused(folder: Path) -> None:
    for content in ("", "[]", '{"traceEvents": []}'):
        (folder / "other.json").write_text(content)
        result = zinf("report", "other.json")
        assert isinstance(result.exception, ZinfError) and "other.json is no trace of zinf" in str(result.exception)
    head = {"format": 99, "versions": {"zinf": "9.9"}}
    (folder / "other.json").write_text(json.dumps({"traceEvents": [], "zinf": head}))
    assert "has format 99 (zinf 9.9), and this zinf reads 1" in str(zinf("report", "other.json").exception)


@pytest.mark.parametrize("text", ["0:3", "4:3", "a", "", "1:2:3", "-1"])
def test_steps_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ZinfError, match="wants the first and the last step to record, such as 3:4"):
        Window.parse(text)


def test_steps_are_counted_by_optimizer_steps_once_there_are_any() -> None:
    steps = Steps(Window.parse("2:3"))
    assert steps.starts() == ()
    assert steps.backward_ended(1.0) == ("begin",)  # for all that is known, a backward is a step
    assert steps.backward_ended(2.0) == ()
    assert steps.optimizer_stepped(3.0) == ("drop", "begin")  # it was not: two of them make one
    assert [steps.backward_ended(4.0), steps.backward_ended(5.0)] == [(), ()]
    assert steps.optimizer_stepped(6.0) == ()
    assert steps.optimizer_stepped(7.0) == ("end",)
    assert steps.ends == [3.0, 6.0, 7.0]


def test_without_an_optimizer_backwards_are_counted() -> None:
    steps = Steps(Window.parse("1:2"))
    assert steps.starts() == ("begin",)
    assert [steps.backward_ended(1.0), steps.backward_ended(2.0), steps.backward_ended(3.0)] == [(), ("end",), ()]
    assert steps.ends == [1.0, 2.0, 3.0]


def test_accumulated_gradients_are_one_step(folder: Path, disk: Path) -> None:
    loop = LOOP.replace(
        "    optimizer.step()", "    compiled(torch.ones(4, 32)).sum().backward()\n    optimizer.step()"
    )
    result = zinf("trace", "--steps", "2:2", written(folder, loop), disk, 3)
    assert result.exit_code == 0, result.output
    assert [name for name in phases(folder / "trace.json") if name != "update"] == ["fwd", "bwd", "fwd", "bwd"]
