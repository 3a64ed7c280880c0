"""`zinf doctor` for real on this machine, and what it prints of a described one."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import zcompiler.cli.doctor.command as command
from tests.cli.doctor.described import DISK, GOOD
from zcompiler.cli.app import app
from zcompiler.cli.doctor.found import Compiler, Found
from zcompiler.cli.doctor.judge.all import judge
from zcompiler.cli.doctor.look import PROBES, look
from zcompiler.cli.doctor.report import report
from zcompiler.machine.choose import calibrated_file, shipped_machine
from zcompiler.machine.file import write_machine
from zcompiler.options import OptionError

BAD = replace(GOOD, compiler=Compiler(missing="none [here]"), disks=(replace(DISK, refused="no [room]: name another"),))


def printed(found: Found, width: int = 80) -> str:
    shown = io.StringIO()
    report(judge(found), Console(file=shown, width=width))
    return shown.getvalue()


def test_this_machine_with_the_default_folder_which_is_gone_again(own_home: Path) -> None:
    done: list[int] = []
    found = look((), os.environ, lambda: done.append(1))
    assert found.disks[0].path == own_home / "zinf" and found.disks[0].alignment is not None
    assert found.torch.version and found.compiler.path and found.machine.startswith("laptop (") and not found.calibrated
    assert min(found.cores) >= 1 and found.open_files[0] and len(done) == PROBES
    assert list(own_home.iterdir()) == []


@pytest.mark.parametrize("attention", [(), (("f32", 1e11),)])
def test_a_measured_machine_is_looked_into(attention: tuple[tuple[str, float], ...], own_home: Path) -> None:
    file = calibrated_file(os.environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_machine(replace(shipped_machine("laptop"), attention=attention), file)
    found = look((), os.environ, lambda: None)
    assert found.calibrated and found.whole is bool(attention)


def test_the_command_looks_at_each_folder_that_is_named(disk: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--nvme", str(disk), "--nvme", str(tmp_path / "gone"), "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["usable"] is False
    assert {row["about"] for row in found["groups"][f"Disk {disk}"]} >= {"file system", "direct I/O", "space"}
    (row,) = found["groups"][f"Disk {tmp_path / 'gone'}"]
    assert row["level"] == "problem" and row["said"] == f"store path {tmp_path / 'gone'} does not exist"
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(("found", "code"), [(GOOD, 0), (BAD, 1), (replace(GOOD, open_files=(8, 8)), 0)])
def test_only_problems_are_a_failure(found: Found, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "look", lambda *arguments: found)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == code


def test_the_default_folder_that_cannot_be_made_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = look((), {"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path)}, lambda: None)
    (row,) = judge(found)[f"Disk {tmp_path / 'file' / 'zinf'}"]
    assert row.level == "problem" and "cannot be created" in row.said and "ZINF_NVME" in row.remedy


def test_a_wrong_machine_file_is_a_row(tmp_path: Path, disk: Path) -> None:
    file = tmp_path / "zinf" / "machine.toml"
    file.parent.mkdir()
    file.write_text("zinf-machine = 99\n")
    found = look([str(disk)], {"XDG_CONFIG_HOME": str(tmp_path)}, lambda: None)
    assert str(file) in found.machine_error


def test_no_name_is_no_name_for_the_current_folder() -> None:
    with pytest.raises(OptionError, match="cannot be ''"):
        look([""], os.environ, lambda: None)


def test_what_is_printed_has_the_remedy_under_its_row_and_a_verdict() -> None:
    lines = printed(BAD).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("problem folder"))
    assert lines[at].split(None, 2)[2].strip() == "no [room]"
    assert lines[at + 1].split("->")[1].strip() == "name another"
    assert any("none [here]" in line for line in lines)
    assert lines[-1] == "zinf does not work here until the problems are mended (1 problem, 1 note)."
    assert printed(GOOD).splitlines()[-1] == "zinf works here."
    assert all(len(line) <= 80 for line in lines)
