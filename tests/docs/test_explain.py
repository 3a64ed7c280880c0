"""The examples of docs/explain.md are run: commands print what the page shows, and the lines of Python go through."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zcompiler.cli.app import app

TEXT = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def zinf(command: str) -> list[str]:
    name, *arguments = shlex.split(command)
    assert name == "zinf"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def test_the_commands_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(blocks("python")[0])
    explained, refused = blocks("sh")
    assert zinf(explained) == blocks("text")[0].splitlines()
    Path("model.py").write_text(blocks("python")[0].replace("range(6)", "range(2)"))  # much is tried before a refusal
    said = zinf(refused)
    assert "It does not fit" in said and "What would make it fit" in said


def test_the_lines_of_python_explain_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[1], {})
    printed = capsys.readouterr().out
    assert "What would help, by planning again\n" in printed and " -> " in printed.splitlines()[-1]
