"""The example in docs/stats.md is run and prints what the page shows, and its table has every field."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from tests.docs.printed import printed
from zcompiler.training.statistics import Stats

PAGE = Path(__file__).parents[2] / "docs" / "stats.md"
PATH = '"nvme": "/path/on/a/disk"'


def test_the_example_prints_what_the_page_shows(disk: Path) -> None:
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code.count(PATH) == 1
    # Nothing is compiled with C++: that would take longer than all else.
    assert printed(code.replace(PATH, f'"nvme": {str(disk)!r}, "compute": "eager"'), disk) == shown


def test_the_table_has_every_field() -> None:
    table = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert named == {field.name for field in fields(Stats)}
