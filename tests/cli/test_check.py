"""`zinf check`: statuses, what it prints, and how a base is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.test_app import run_main
from tests.compare.texts import ONE_RANK, TIMES, golden
from zcompiler.cli.app import app

STEP = golden(ONE_RANK)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: `good.zsched`, `bad.zsched` (a unit more is read) and `base.json` of the good one."""
    monkeypatch.chdir(tmp_path)
    Path("good.zsched").write_text(str(STEP))
    Path("bad.zsched").write_text(str(golden(ONE_RANK, without="keep-last-unit")))
    assert check("good.zsched", "--update") == (0, "base.json: written, 1 schedule\n")
    return tmp_path


def check(*arguments: str, against: str = "base.json") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", *arguments, "--against", against])
    return result.exit_code, result.output


@pytest.mark.usefixtures("here")
def test_what_is_worse_is_a_table_and_a_line_that_names_the_op() -> None:
    status, shown = check("bad.zsched")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert status == 1
    assert "nvme_read 10 KiB 12 KiB +2 KiB (+20 %) worse" in lines
    assert "nvme_read +2 KiB (+20 %): read l2 in bwd/l2 was not there before" in lines
    assert lines[-3:] == [
        "Worse than base.json: 4 of 9 figures.",
        "Every op that differs: zinf diff base.json bad.zsched",
        "If this is what it should be: zinf check bad.zsched --against base.json --update",
    ]


@pytest.mark.usefixtures("here")
def test_what_is_the_same_passes() -> None:
    said = (0, "No worse than base.json, in 9 figures.\n")
    assert check("good.zsched") == said
    Path("other.zsched").write_text(str(STEP).replace("x1", "addmm"))
    assert check("other.zsched") == said


@pytest.mark.usefixtures("here")
def test_what_is_better_passes_and_says_how_to_keep_it() -> None:
    assert check("bad.zsched", "--update", against="bad.json")[0] == 0
    status, shown = check("good.zsched", against="bad.json")
    assert status == 0 and "-2 KiB (-16.7 %)" in shown and "better" in shown
    last = "Better than bad.json. To keep it so: zinf check good.zsched --against bad.json --update\n"
    assert shown.endswith(last)
    assert check("good.zsched", "--update", against="bad.json") == (0, "bad.json: written, 1 schedule\n")
    assert check("good.zsched", "--update", against="bad.json") == (0, "bad.json: unchanged, 1 schedule\n")
    assert check("bad.zsched", against="bad.json")[0] == 1


@pytest.mark.usefixtures("here")
def test_a_schedule_can_be_the_base_itself() -> None:
    status, shown = check("bad.zsched", against="good.zsched")
    assert status == 1 and "nvme_read +2 KiB (+20 %): read l2 in bwd/l2 was not there before\n" in shown
    assert "--update" not in shown
    assert check("good.zsched", against="bad.zsched")[1].endswith("To keep it so, take it as the new base\n")


@pytest.mark.usefixtures("here")
def test_tolerances_are_taken_from_the_command_line() -> None:
    status, shown = check("bad.zsched", "--tolerance", "bytes=20%", "--tolerance", "exposed=50%")
    assert status == 0 and "within" in shown and shown.endswith("No worse than base.json, in 9 figures.\n")


@pytest.mark.usefixtures("here")
def test_json_has_every_figure_its_verdict_and_the_op() -> None:
    status, shown = check("bad.zsched", "--json")
    found = json.loads(shown)
    assert status == 1 and found["worse"] is True
    (read,) = [f for f in found["findings"] if f["metric"]["of"] == "nvme_read"]
    assert read == {
        "metric": {"kind": "bytes", "of": "nvme_read", "schedule": ""},
        "before": 10240,
        "after": 12288,
        "allowed": 10240,
        "verdict": "worse",
        "because": "read l2 in bwd/l2 was not there before",
    }


@pytest.mark.usefixtures("here")
def test_a_step_of_a_graph_and_an_update_is_judged_as_a_whole() -> None:
    files = [str(TIMES / f"{name}.zsched") for name in ("graph", "update")]
    assert check(*files, "--update", against="step.json") == (0, "step.json: written, 2 schedules\n")
    assert check(*files, against="step.json") == (0, "No worse than step.json, in 10 figures.\n")
    text = (TIMES / "update.zsched").read_text().replace("l1:state state f32 8KiB", "l1:state state f32 16KiB")
    Path("update.zsched").write_text(text)
    status, shown = check(files[0], "update.zsched", against="step.json")
    assert status == 1
    assert "nvme_read +8 KiB (+22.2 %): read l1:state in update/l0 of update moves 16 KiB, was 8 KiB" in shown
    assert "peak host (update) " in shown and "zinf diff step.json NEW" in shown


@pytest.mark.usefixtures("here")
def test_a_step_whose_update_is_missing_is_not_taken_for_a_better_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(TIMES / f"{name}.zsched") for name in ("graph", "update")]
    assert check(*files, "--update", against="step.json")[0] == 0
    assert run_main(monkeypatch, "check", files[0], "--against", "step.json") == 2
    assert "step.json has the schedule of an optimizer step, update, and there is none in" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_graph_that_is_gone_is_said() -> None:
    assert check("good.zsched", "bad.zsched", "--update", against="both.json")[0] == 0
    status, shown = check("good.zsched", against="both.json")
    assert status == 0 and shown.startswith("The schedule bad is there no longer.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.zsched", "--against", "base.json"), "gone.zsched: No such file or directory; name a .zsched file"),
        (("good.zsched", "--against", "gone.json"), "gone.json: no such base; make one: zinf check good.zsched --ag"),
        (("good.zsched", "--against", "bad.zsched", "--update"), "--update writes a base, whose name ends in .json"),
        (("good.zsched", "--against", "base.json", "--tolerance", "byte=1%"), 'did you mean "bytes"?'),
        (("odd.zsched", "--against", "base.json"), "odd.zsched: line 1: 'zsched 9': expected 'zsched 1'"),
        (("rule.zsched", "--against", "base.json"), "rule.zsched: the schedule rule breaks rules"),
        (("good.zsched", "--against", "odd.json"), "odd.json: no base: it is not JSON"),
    ],
)
@pytest.mark.usefixtures("here")
def test_bad_input_is_one_error_and_status_2(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.zsched").write_text("zsched 9\n")
    Path("odd.json").write_text("zsched 9\n")
    Path("rule.zsched").write_text(str(STEP).replace(" after read(l0)\n", "\n", 1))
    before = Path("base.json").read_bytes()
    assert run_main(monkeypatch, "check", *arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.out == ""
    assert Path("base.json").read_bytes() == before


@pytest.mark.usefixtures("here")
def test_torch_is_not_imported() -> None:
    code = "import sys; from zcompiler.cli.check import check; from zcompiler.cli.asked import Asked; "
    code += "from pathlib import Path; check(['bad.zsched'], Asked(), Path('base.json')); "
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.usefixtures("here")
def test_options_of_a_model_are_refused_where_schedules_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "check", "good.zsched", "--against", "base.json", "--memory", "1GiB") == 2
    assert "--memory says how a model is planned, and good.zsched names schedules" in capsys.readouterr().err
