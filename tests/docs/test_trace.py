"""The example in docs/trace.md is run, prints what the page shows, and its commands and its picture exist."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from tests.docs.printed import printed
from zcompiler.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "trace.md"
PATH = '"nvme": "/path/on/a/disk"'


def test_the_example_prints_what_the_page_shows_and_leaves_a_trace(disk: Path) -> None:
    _, code, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code.count(PATH) == 1
    # Nothing is compiled with C++: that would take longer than all else.
    code = code.replace(PATH, f'"nvme": {str(disk)!r}, "compute": "eager"')
    assert printed(code, disk) == shown
    page = CliRunner().invoke(app, ["report", str(disk / "step.json"), "-o", str(disk / "report.html")])
    assert page.exit_code == 0 and (disk / "report.html").stat().st_size > 20_000


def test_the_commands_and_the_picture_exist() -> None:
    text = PAGE.read_text()
    commands = re.findall(r"^zinf (\w+)", text, re.MULTILINE)
    assert set(commands) == {"trace", "report"}
    assert all(CliRunner().invoke(app, [command, "--help"]).exit_code == 0 for command in commands)
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert (PAGE.parent / picture).stat().st_size < 200_000
