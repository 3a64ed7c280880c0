"""docs/doctor.md names each row that the doctor can print and each option, and shows lines as they are printed."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from tests.cli.doctor.described import DISK, GOOD
from zcompiler.cli.app import app
from zcompiler.cli.doctor.judge.all import judge
from zcompiler.cli.doctor.judge.system import FILES_PER_UNIT, UNITS
from zcompiler.cli.doctor.report import report
from zcompiler.machine.choose import choose_machine

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def test_the_page_names_each_row() -> None:
    disks = replace(DISK, nameless=False), replace(DISK, path=Path("/other"), refused="gone: name another")
    rows = {row.about for group in judge(replace(GOOD, disks=disks)).values() for row in group}
    named = {name for line in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in re.findall("`(.*?)`", line)}
    assert named - {"--nvme DIR", "--json"} == rows


def test_the_lines_on_the_page_are_those_that_are_printed() -> None:
    found = replace(GOOD, calibrated=False, machine=str(choose_machine(None, os.environ, Path("/none"))))
    shown = io.StringIO()
    report(judge(found), Console(file=shown, width=120))
    (block,) = re.findall(r"^```\n(note .*?)```", PAGE, re.DOTALL | re.MULTILINE)
    printed = [line.rstrip() for line in shown.getvalue().splitlines()]
    at = printed.index(block.splitlines()[0])
    assert printed[at : at + 2] == block.splitlines()


def test_the_page_names_each_option_and_the_figures_of_the_code() -> None:
    shown = CliRunner().invoke(app, ["doctor", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert all(name in shown for name in re.findall(r"^\| `(--\w+)", PAGE, re.MULTILINE))
    assert f"at {FILES_PER_UNIT} files each" in PAGE and f"below {UNITS} units" in PAGE
