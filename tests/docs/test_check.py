"""docs/check.md: its model, its commands and its CI file do what it says, and what it shows is what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.compare.texts import ONE_RANK, golden
from zcompiler.cli import run_target
from zcompiler.cli.app import app
from zcompiler.compare.gate import TOLERANCES

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text()


def blocks(language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for tag, text in found if tag == language]


def zinf(command: str) -> tuple[int, list[str]]:
    name, *arguments = command.split()
    assert name == "zinf"
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, [line.rstrip() for line in result.output.splitlines()]


def commands() -> list[str]:
    return [block.strip() for block in blocks() if block.startswith("zinf ")]


def test_the_commands_take_the_model_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    Path("model.py").write_text(code)
    update, diff = commands()
    (workflow,) = map(yaml.safe_load, blocks("yaml"))
    _, install, check = (step.get("run", "") for step in workflow["jobs"]["schedule"]["steps"])
    assert install.startswith("pip install ") and f"{check} --update" == update
    assert zinf(update) == (0, ["schedule.json: written, 2 schedules"])
    status, shown = zinf(check)
    assert status == 0 and shown[-1].startswith("No worse than schedule.json, in ")
    dump, diff = diff.splitlines()
    assert zinf(dump)[0] == 0
    assert zinf(diff) == (0, ["graph0: no difference", "update: no difference", "Equal."])
    text = Path("schedule.json").read_text()
    # The limit is one that the optimizer's states do not fit in.
    assert '"nvme_write": ' in text and "state f32 520KiB home=nvme" in text and "f32[32,256,256]" in text


def test_a_run_adds_what_was_measured(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZINF_NVME", str(disk))
    monkeypatch.setattr(run_target, "ROUNDS", 1)
    (code,) = blocks("python")
    Path("model.py").write_text(code)
    (block,) = blocks("sh")
    update, check = block.splitlines()
    assert zinf(f"{update} --compute eager") == (0, ["schedule.json: written, 2 schedules"])
    text = Path("schedule.json").read_text()
    named = re.findall(r"^\| `(measured [^`]+)` \|", PAGE, re.MULTILINE)
    assert len(named) == 2 and [name for name in named if f'"{name}": "' not in text] == []
    # On a machine that is busy the step may take any time, so what it took is not judged here.
    status, shown = zinf(f"{check} --compute eager --tolerance measured=100000%")
    assert status == 0 and shown[-1].startswith(("No worse than schedule.json, in ", "Better than schedule.json."))


def test_a_failure_looks_like_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update, diff = commands()
    update = update.replace("model.py --memory 3MiB", "schedules")
    diff = diff.splitlines()[1]
    check = update.removesuffix(" --update")
    monkeypatch.chdir(tmp_path)
    file = Path("schedules", "graph0", "09-final.zsched")
    file.parent.mkdir(parents=True)
    table, lines, held, differences = (b.splitlines() for b in blocks() if not b.startswith("zinf "))

    file.write_text(str(golden(ONE_RANK)))
    assert zinf(update)[0] == 0
    file.write_text(str(golden(ONE_RANK, without="keep-last-unit")))
    status, shown = zinf(check)
    assert status == 1 and [line for line in [*table, *lines] if line not in shown] == []
    status, shown = zinf(diff)
    assert status == 1 and shown[: len(differences)] == differences

    file.write_text(str(golden(ONE_RANK, without="prefetch-reads")))
    assert zinf(update)[0] == 0
    file.write_text(str(golden(ONE_RANK)))
    status, shown = zinf(check)
    assert status == 1 and held[0] in shown


def test_the_page_has_each_figure_with_its_tolerance() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+) % \|$", PAGE, re.MULTILINE))
    assert {kind: int(part) for kind, part in rows.items()} == {k: part * 100 for k, part in TOLERANCES.items()}
