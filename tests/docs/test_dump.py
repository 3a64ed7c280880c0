"""The examples of docs/dump.md are run: the command prints what the page shows, and the lines of Python go through."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zcompiler.cli.app import app

TEXT = (Path(__file__).parents[2] / "docs" / "dump.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_command_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(blocks("python")[0])
    command = shlex.split(blocks("sh")[0])
    assert command[0] == "zinf"
    result = CliRunner().invoke(app, command[1:])
    assert result.exit_code == 0 and result.stdout == blocks("text")[0]


def test_the_lines_of_python_describe_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[1], {})
    printed = capsys.readouterr().out
    assert printed.startswith("# graph0\n") and "Homes(params='host', grads=" in printed and "update/0" in printed
