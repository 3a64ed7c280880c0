"""A machine survives being written to a file, and what is wrong in a file is one error that says all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.machine.described import SMALL, machines
from zcompiler.errors import ZinfError
from zcompiler.machine.file import format_machine, parse_machine, read_machine, write_machine
from zcompiler.machine.machine import Machine
from zcompiler.machine.table import MachineError


def refused(text: str) -> str:
    with pytest.raises(MachineError) as caught:
        parse_machine(text, "machine file /box.toml")
    return str(caught.value)


@given(machines())
def test_a_machine_survives_being_written(machine: Machine) -> None:
    text = format_machine(machine)
    assert parse_machine(text, "text") == machine
    assert format_machine(parse_machine(text, "text")) == text


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"1GB/s"', '"-1GB/s"', ("\"lanes.nvme_read.bandwidth\" cannot be '-1GB/s'", "above zero", "GB/s")),
        ('"1GB/s"', '"0GB/s"', ("'0GB/s'", "above zero")),
        ('"1GB/s"', '"1GB"', ("'1GB'", '"1.3GB/s"')),
        ('"1GB/s"', '"1 gb/s"', ('did you mean "1GB/s"?',)),
        ('"1GB/s"', "1000000000", ("cannot be 1000000000", '"1.3GB/s"')),
        ('"1GB/s"', "true", ("cannot be True",)),
        ('"1GB/s"', "inf", ("cannot be inf",)),
        ('"1GB/s"', f'"{"9" * 350}PB/s"', ("a bandwidth above zero",)),
        ('"1ms"', '"1MB/s"', ('"lanes.nvme_read.latency"', '"80us"')),
        ('"2GiB"', '"2GiB/s"', ('"tiers.host"', '"24GiB"')),
        ('"2GiB"', '"0.1B"', ('"tiers.host"',)),
        ('"1GFLOP/s"', '"1GB/s"', ('"matmul.f32.10"', '"85GFLOP/s"')),
        ("nvme_read =", "nvme_raed =", ('unknown key "lanes.nvme_raed"', 'did you mean "nvme_read"?', "nvme_mixed")),
        ("host =", "hsot =", ('unknown key "tiers.hsot"', 'did you mean "host"?')),
        ("[tiers]", '[tiers]\ndevice = "1GiB"', ('"lanes.h2d" is missing',)),
        ("[matmul.f32]", "[matmul.f33]", ('unknown key "matmul.f33"', 'did you mean "f32"?')),
        ("[matmul.f32]", "[matmul.bf16]", ('"matmul.f32" is missing',)),
        ("[memory]", '[attention]\nf32 = "1GB/s"\n[memory]', ('"attention.f32"', '"85GFLOP/s"')),
        ("[memory]", '[attention]\nf31 = "1GFLOP/s"\n[memory]', ('unknown key "attention.f31"', 'mean "f32"?')),
        ('10 = "1GFLOP/s"\n100 = "10GFLOP/s"', "", ("matmul.f32 is empty", '256 = "85GFLOP/s"')),
        ("10 =", "ten =", ('"ten"', "sides of square matmuls")),
        ("10 =", "010 =", ('"010"',)),
        ("10 =", "0 =", ('"0"',)),
        ('"10GFLOP/s"', '"10TFLOP/s"', ("100 faster than 10 by more than its 1000 times", "measure both")),
        ('copy = "6GB/s"', "", ('"memory.copy" is missing',)),
        (', latency = "2ms"', "", ('"lanes.nvme_write.latency" is missing', 'latency = "80us"')),
        ('name = "small"', "", ('"name" is missing',)),
        ('name = "small"', 'name = ""', ("\"name\" cannot be ''",)),
        ('name = "small"', 'name = "a\\nb"', ("one line",)),
        ('name = "small"', 'name = "small"\nspeed = 1', ('unknown key "speed"', "tiers")),
        ('["lanes.nvme_read"]', '"all"', ("\"measured\" cannot be 'all'",)),
        ("[tiers]", "tiers = 3\n[others]", ('unknown key "others"',)),
        ("zinf-machine = 1", "zinf-machine = 2", ('"zinf-machine" cannot be 2', "it takes 1")),
        ("zinf-machine = 1", "", ('"zinf-machine" is missing',)),
        ("zinf-machine = 1", "zinf-machine : 1", ("is not TOML", "line 2")),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_a_remedy(old: str, new: str, parts: tuple[str, ...]) -> None:
    assert SMALL.count(old) >= 1
    message = refused(SMALL.replace(old, new, 1))
    assert message.startswith("machine file /box.toml") and "\n" not in message
    assert all(part in message for part in parts), message


def test_a_value_where_a_table_belongs() -> None:
    before, after = SMALL.split("[tiers]")
    rest = after[after.index("[lanes]") :]
    assert '"tiers" cannot be 3; it takes a table, [tiers]' in refused(f"{before}tiers = 3\n{rest}")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"gone\.toml cannot be read \(No such file.*zinf calibrate --output"):
        read_machine(tmp_path / "gone.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ZinfError, match="not UTF-8"):
        read_machine(tmp_path / "binary.toml")


def test_a_file_is_written_whole_with_its_comment(tmp_path: Path) -> None:
    machine = parse_machine(SMALL, "text")
    path = tmp_path / "made" / "box.toml"
    write_machine(machine, path, "measured today\nby hand")
    write_machine(machine, path, "measured today\nby hand")
    assert path.read_text().startswith("# measured today\n# by hand\nzinf-machine = 1\n")
    assert read_machine(path) == machine
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "box.toml"
    path.write_text("old")

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_machine(parse_machine(SMALL, "text"), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
