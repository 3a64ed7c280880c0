"""`zinf calibrate` on tiny sizes, end to end: what it writes and shows, cannot measure, and that it leaves nothing."""

from __future__ import annotations

import io
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import zcompiler.cli.calibrate.command as command
from runtime_ext.nvme import StoreError
from runtime_ext.nvme.files import Syscalls
from zcompiler.cli.app import app
from zcompiler.cli.calibrate.compute import _matmuls
from zcompiler.cli.calibrate.found import machine_of
from zcompiler.cli.calibrate.samples import Effort, Sample, medians
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import calibrated_file, shipped_machine, tiers_here
from zcompiler.machine.file import read_machine
from zcompiler.machine.machine import Memory

QUICK = Effort(
    rounds=2,
    transfer=32 << 10,
    piece=8 << 10,
    sides=(4, 8, 16),
    operands=8 << 10,
    heads=(1, 16, 8),
    beside=4,
    tensor=8 << 10,
    updated=4 << 10,
    least=0,
    most=3,
    layers=2,
)
ALL = {
    "lanes.nvme_read",
    "lanes.nvme_write",
    "lanes.nvme_mixed",
    "matmul.f32",
    "matmul.bf16",
    "attention.f32",
    "attention.bf16",
    "memory",
    "calls",
    "update",
}


def calibrate(terminal: bool = False, **asked: Any) -> tuple[str, str]:
    """What the command shows and what it says besides."""
    shown, said = io.StringIO(), io.StringIO()
    consoles = [Console(file=file, force_terminal=terminal, width=200) for file in (shown, said)]
    arguments = {"nvme": None, "output": None, "as_json": False, "effort": QUICK, **asked}
    command.calibrate(console=consoles[0], errors=consoles[1], **arguments)
    return shown.getvalue(), said.getvalue()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def lanes() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("zinf-")]


@pytest.mark.usefixtures("quiet")
def test_all_is_measured_written_and_nothing_else_left(disk: Path, tmp_path: Path) -> None:
    before = lanes()
    file = tmp_path / "made" / "box.toml"
    shown, said = calibrate(nvme=disk, output=file)
    assert shown == f"written to {file}\n" and said == ""
    machine = read_machine(file)
    assert machine.name == "calibrated" and set(machine.measured) == ALL
    assert [[side for side, _ in rates.points] for rates in machine.matmuls] == [[4, 8, 16]] * 2
    assert {lane.name for lane in machine.lanes} == {"nvme_read", "nvme_write", "nvme_mixed"}
    slowing = {lane.name: lane.interference for lane in machine.lanes if lane.interference is not None}
    assert set(slowing) == {"nvme_read", "nvme_write"} and min(slowing.values()) > 0
    assert machine.tiers[0] == tiers_here(disk)[0]
    assert file.read_text().startswith("# Measured by zinf calibrate on ") and f"# Disk: {disk}\n" in file.read_text()
    assert list(file.parent.iterdir()) == [file] and list(disk.iterdir()) == [] and lanes() == before


@pytest.mark.usefixtures("quiet")
def test_without_names_it_is_the_users_file_and_a_folder_that_is_gone_again(own_home: Path) -> None:
    calibrate()
    assert set(read_machine(calibrated_file(os.environ)).measured) == ALL
    assert list(own_home.iterdir()) == []


def test_a_terminal_gets_a_table_and_a_bar(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zcompiler.progress.DELAY", 0.0)
    for name in ("CI", "ZINF_PROGRESS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    shown, said = calibrate(terminal=True, nvme=disk, output=tmp_path / "box.toml")
    for word in ("nvme_mixed", "matmul bf16 16", "attention f32", "GB/s", "measured", "AdamW, fused", "host holds"):
        assert word in shown
    assert "described" not in shown
    assert "━" in said


def test_json_is_all_there_is_on_the_output(disk: Path, tmp_path: Path) -> None:
    file = tmp_path / "box.toml"
    shown, _ = calibrate(terminal=True, nvme=disk, output=file, as_json=True)
    found = json.loads(shown)
    machine = read_machine(file)
    assert found["file"] == str(file) and found["seconds"] > 0
    assert found["machine"]["elementwise"] == machine.elementwise
    assert found["machine"]["lanes"][0]["bandwidth"] == machine.lanes[0].bandwidth


def test_load_of_other_programs_is_noted(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    _, said = calibrate(nvme=disk, output=tmp_path / "box.toml")
    assert said.startswith("other programs kept 7.5 of 8 processors busy")
    assert "# other programs kept 7.5" in (tmp_path / "box.toml").read_text()


@pytest.mark.usefixtures("quiet")
def test_a_disk_without_space_is_described_and_said(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Stored", failing_store)
    _, said = calibrate(output=tmp_path / "box.toml")
    assert "the disk was not measured" in said and "no space here" in said and "--nvme DIR" in said
    machine = read_machine(tmp_path / "box.toml")
    assert set(machine.measured) == {part for part in ALL if not part.startswith("lanes")}
    assert machine.lanes == shipped_machine("laptop").lanes
    assert list(own_home.iterdir()) == []


def failing_store(*arguments: Any) -> None:
    raise StoreError(28, "no space here")


def test_a_disk_that_was_named_must_do(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        calibrate(nvme=tmp_path / "gone", output=tmp_path / "box.toml")
    with pytest.raises(StoreError, match="cannot be looked at"):
        calibrate(nvme=tmp_path / ("x" * 300), output=tmp_path / "box.toml")
    monkeypatch.setattr(command, "Stored", failing_store)
    with pytest.raises(StoreError, match="no space here"):
        calibrate(nvme=disk, output=tmp_path / "box.toml")
    assert not (tmp_path / "box.toml").exists()


@pytest.mark.usefixtures("quiet")
def test_a_disk_without_direct_io_is_measured_as_the_store_uses_it(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_direct_io(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return os.open(path, flags, *mode)

    monkeypatch.setattr("runtime_ext.nvme.store.Syscalls", lambda: Syscalls(open=no_direct_io))
    _, said = calibrate(nvme=disk, output=tmp_path / "box.toml")
    assert "refuses direct I/O" in said and "--nvme DIR" in said
    assert set(read_machine(tmp_path / "box.toml").measured) == ALL


@pytest.mark.parametrize("where", ["in the middle", "at the end"])
def test_ctrl_c_leaves_nothing(where: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lanes()

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(*((command, "medians") if where == "in the middle" else (os, "replace")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate()
    assert list(own_home.iterdir()) == [] and lanes() == before
    assert [path for path in calibrated_file(os.environ).parents[1].rglob("*") if path.is_file()] == []


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(disk: Path, tmp_path: Path) -> None:
    with pytest.raises(ZinfError, match=f"{tmp_path} is a folder: name another file with --output"):
        calibrate(nvme=disk, output=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ZinfError, match="cannot be made in"):
        calibrate(nvme=disk, output=tmp_path / "file" / "box.toml")


def test_the_command_hands_over_what_was_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(command, "calibrate", lambda **arguments: asked.update(arguments))
    result = CliRunner().invoke(app, ["calibrate", "--nvme", "/disk", "--output", str(tmp_path / "a"), "--json"])
    assert result.exit_code == 0
    assert (asked["nvme"], asked["output"], asked["as_json"]) == ("/disk", tmp_path / "a", True)
    assert asked["effort"] == Effort()


def test_no_name_is_no_name_for_the_current_folder() -> None:
    result = CliRunner().invoke(app, ["calibrate", "--nvme", ""])
    assert result.exit_code != 0
    assert "option \"nvme\" cannot be ''" in result.output + str(result.exception)


def test_matrices_take_turns_within_the_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    operands, seen, multiply = torch.ones(8 * 3 * 4 * 4), set(), torch.mm

    def seeing(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        seen.add(a.data_ptr() - operands.data_ptr())
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "mm", seeing)
    for sample in _matmuls("f32", operands, replace(QUICK, sides=(4,), least=0.01)):
        sample.take()
    assert seen == {i * 3 * 4 * 4 * 4 for i in range(8)}


def test_the_median_is_taken_over_rounds_of_everything() -> None:
    order: list[str] = []
    values = {"a": iter([3.0, 1.0, 100.0]), "b": iter([5.0, 6.0, 4.0])}
    samples = [Sample(key, lambda key=key: next(values[key])) for key in values]  # type: ignore[misc]
    assert medians(samples, 3, order.append) == {"a": 3.0, "b": 5.0}
    assert order == ["a", "b"] * 3


def test_a_smaller_matmul_that_was_disturbed_counts_as_no_slower_than_a_larger_one() -> None:
    figures = {"matmul.f32.64": 1e6, "matmul.f32.128": 1e11, "matmul.f32.256": 0.9e11}
    (rates,) = machine_of(figures, (Memory("host", 1), Memory("nvme", 1))).matmuls
    assert dict(rates.points)[128] == 1e11 and dict(rates.points)[256] == 0.9e11
    took = {side: side**3 / rate for side, rate in rates.points}
    assert 0.9 * took[128] < took[64] < took[128]
