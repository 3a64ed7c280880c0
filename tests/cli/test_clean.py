"""`zinf clean` removes what a kill has left, and nothing else: no file in use, no link, no file of anybody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zcompiler.cli.app import app
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import calibrated_file

NAMES = [f"zinf-{digit * 16}.tmp" for digit in "0123456789"]

HOLDER = """
import sys
from pathlib import Path
from runtime_ext.nvme.files import Syscalls, open_anonymous
import os

def stop(path, flags, mode):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(95, "not here")
    if not flags & os.O_EXCL:  # the file has a name, and its lock is held
        print("ready", flush=True)
        sys.stdin.read()
    return os.open(path, flags, mode)

open_anonymous(Path(sys.argv[1]), 0, Syscalls(open=stop))
"""


def clean(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["clean", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def left_by_a_kill(folder: Path, kill: bool) -> subprocess.Popen[str]:
    """A process between making a file and taking its name away: alive, or killed there."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    if kill:
        process.kill()
        process.communicate()
    return process


def test_a_killed_process_has_left_a_file_and_a_living_one_keeps_its_own(disk: Path) -> None:
    left_by_a_kill(disk, kill=True)
    (left,) = disk.iterdir()
    living = left_by_a_kill(disk, kill=False)
    (held,) = set(disk.iterdir()) - {left}
    assert clean("--nvme", str(disk), "--dry-run").splitlines() == [
        f"would remove {left}",
        f"in use by a running process: {held}",
    ]
    assert set(disk.iterdir()) == {left, held}
    assert clean("--nvme", str(disk)).splitlines() == [f"removed {left}", f"in use by a running process: {held}"]
    assert list(disk.iterdir()) == [held]
    living.communicate()
    assert living.returncode == 0 and list(disk.iterdir()) == []


def test_nothing_is_said_clearly(disk: Path, own_home: Path) -> None:
    said = clean("--nvme", str(disk))
    assert said.startswith(f"nothing to remove in {disk} and ") and "no names" in said
    assert clean().startswith(f"nothing to remove in {own_home / 'zinf'} and ")
    assert list(own_home.iterdir()) == []


def test_links_and_foreign_files_stay(disk: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    (disk / NAMES[0]).symlink_to(precious)
    os.mkfifo(disk / NAMES[1])
    (disk / NAMES[2]).mkdir()
    (disk / NAMES[3]).write_text("data of somebody")
    for name in ("zinf-notes.tmp", "a.tmp", NAMES[4] + "~"):
        (disk / name).touch()
    (disk / "below").mkdir()
    (disk / "below" / NAMES[5]).touch()
    before = sorted(disk.rglob("*"))
    assert clean("--nvme", str(disk)).startswith("nothing to remove")
    assert sorted(disk.rglob("*")) == before and precious.exists()


def test_the_default_folder_and_an_unfinished_machine_file(own_home: Path) -> None:
    settings = calibrated_file(os.environ).parent
    for folder in (own_home / "zinf", settings):
        folder.mkdir()
    unfinished, kept = settings / ".zinf-ab12_cd3", (settings / "machine.toml", settings / ".zinf-mine")
    unfinished.write_text("half a")
    for file in kept:
        file.touch()
    (own_home / "zinf" / NAMES[0]).touch()
    assert clean().splitlines() == [f"removed {own_home / 'zinf' / NAMES[0]}", f"removed {unfinished}"]
    assert set(settings.iterdir()) == set(kept)


def test_json_has_all_of_it(disk: Path) -> None:
    (disk / NAMES[0]).touch()
    folders = [str(disk), str(calibrated_file(os.environ).parent)]
    for removed in (False, True):
        found = json.loads(clean("--nvme", str(disk), "--json", *([] if removed else ["--dry-run"])))
        assert found == {"folders": folders, "left": [str(disk / NAMES[0])], "in_use": [], "removed": removed}
    assert list(disk.iterdir()) == []


def test_a_folder_that_was_named_has_to_be_there(disk: Path) -> None:
    (disk / "file").touch()
    for name in ("gone", "file"):
        with pytest.raises(ZinfError, match=f"{name} is not a folder: name the one"):
            clean("--nvme", str(disk / name))
