"""The file in docs/machine.md is a machine, its Python lines are run, and what it names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from tests.docs.printed import printed
from zcompiler.cli.app import app
from zcompiler.machine.file import format_machine, parse_machine
from zcompiler.options import MACHINES

PAGE = (Path(__file__).parents[2] / "docs" / "machine.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_file_on_the_page_is_a_machine_as_zinf_would_write_it() -> None:
    (text,) = blocks("toml")
    machine = parse_machine(text, "docs/machine.md")
    assert tomllib.loads(format_machine(machine)) == tomllib.loads(text)


def test_the_python_lines_run_and_print_what_the_comment_says(disk: Path) -> None:
    (code,) = blocks("python")
    # Nothing is compiled with C++: that would take longer than all else.
    code = code.replace('"machine":', '"compute": "eager", "machine":')
    assert printed(code, disk).strip() == code.strip().rsplit("# ", 1)[1]


def test_the_page_names_each_shipped_machine_and_each_option_of_the_command() -> None:
    assert all(f"| `{name}` |" in PAGE for name in MACHINES)
    shown = CliRunner().invoke(app, ["calibrate", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    named = re.findall(r"^\| `(--\w+)", PAGE, re.MULTILINE)
    assert named == ["--nvme", "--output", "--json"] and all(name in shown for name in named)
