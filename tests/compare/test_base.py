"""A base: what it looks like, that it reads back, and what is said of one that is not right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compare.texts import ONE_RANK, golden
from zcompiler.compare.base import format_base, parse_base
from zcompiler.compare.files import read_side, require_rules
from zcompiler.compare.metrics import Side
from zcompiler.errors import BadInput
from zcompiler.schedule.text import parse_schedule

STEP = golden(ONE_RANK)
TEXT = format_base(Side({"step": STEP}, compiled=2))


def broken(change: dict[str, Any]) -> str:
    return json.dumps({**json.loads(TEXT), **change})


def test_it_is_sorted_has_a_version_and_says_the_figures_and_every_line() -> None:
    base = json.loads(TEXT)
    assert list(base) == sorted(base) == ["metrics", "schedules", "zinf-base"] and base["zinf-base"] == 1
    metrics = base["metrics"]
    assert list(metrics) == sorted(metrics) and metrics["nvme_read"] == "10KiB" and metrics["compiled regions"] == 2
    assert metrics["peak host (step)"] == "13KiB" and metrics["exposed on laptop"].endswith(" ms")
    assert '\n   "  nvme_read  read           l1 nvme->host for fwd/l1",\n' in TEXT


def test_it_reads_back() -> None:
    side = parse_base(TEXT, "base.json")
    assert side == Side({"step": STEP}, 2) and format_base(side) == TEXT


def test_what_was_measured_stands_there_alone() -> None:
    text = format_base(Side({"step": STEP}, 2, measured={"a ratio": 1630}))
    assert json.loads(text)["metrics"]["measured a ratio"] == "1.630"
    side = parse_base(text, "base.json")
    assert side.measured == {"a ratio": 1630} and format_base(side) == text
    with pytest.raises(BadInput, match=r"b\.json: 'measured a ratio' is 'fast', not a number: write it anew with --up"):
        parse_base(text.replace("1.630", "fast"), "b.json")


def test_times_of_another_release_are_no_contradiction() -> None:
    metrics = json.loads(TEXT)["metrics"]
    assert parse_base(broken({"metrics": {**metrics, "exposed on laptop": "9.000 ms"}}), "base.json").compiled == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"b\.json: no base: it is not JSON \("),
        ("[]", r'b\.json: no base: it has no "zinf-base"; `zinf check NEW --against b\.json --update` writes one'),
        (broken({"zinf-base": 2}), r"b\.json: a base of version 2; this zinf reads 1: write it anew with --update"),
        (broken({"schedules": {}}), r'b\.json: no base: "schedules" has to map names to lists of lines'),
        (broken({"schedules": {"step": "text"}}), "has to map names to lists of lines"),
        (broken({"schedules": {"step": ["zsched 2"]}}), r"b\.json: step: line 1: 'zsched 2': expected 'zsched 1'"),
        (broken({"metrics": {}}), r"says 'graphs': None, but its schedules 1: write it anew with --update"),
        (broken({"metrics": []}), r'b\.json: no base: "metrics" has to map names to figures'),
        (TEXT.replace('"10KiB"', '"9KiB"'), r"says 'nvme_read': '9KiB', but its schedules '10KiB': write it anew"),
        (TEXT.replace("writes x1 ", ""), r"b\.json: step: line"),
    ],
)
def test_a_base_that_is_not_right_is_one_error(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_base(text, "b.json")


def test_sides_come_from_files_folders_and_bases(tmp_path: Path) -> None:
    (tmp_path / "graph0").mkdir()
    for name in ("graph0/00-bare", "graph0/09-final", "update"):
        (tmp_path / f"{name}.zsched").write_text(str(STEP))
    (tmp_path / "base.json").write_text(TEXT)
    assert list(read_side([tmp_path]).schedules) == ["graph0", "update"]
    assert list(read_side([tmp_path / "graph0"]).schedules) == ["graph0"]
    both = read_side([tmp_path / "update.zsched", tmp_path / "base.json"])
    assert list(both.schedules) == ["update", "step"] and both.compiled == 2
    with pytest.raises(BadInput, match="another file or folder named before it has a schedule update, too"):
        read_side([tmp_path / "update.zsched", tmp_path])
    (tmp_path / "graph0" / "11-final.zsched").write_text(str(STEP))
    with pytest.raises(BadInput, match=r"11-final\.zsched: 09-final\.zsched beside it is of another run; empty the"):
        read_side([tmp_path])


def test_a_schedule_that_breaks_a_rule_is_shown_with_the_line() -> None:
    text = "\n".join(line for line in str(STEP).splitlines() if not line.startswith(("  live", "peak")))
    bad = parse_schedule(text.replace("  compute    release        l0:full@host\n", "", 1))
    with pytest.raises(BadInput, match=r"(?s)new: the schedule graph0 breaks rules.*\[made-once\].*-->"):
        require_rules(Side({"graph0": bad}), "new")
