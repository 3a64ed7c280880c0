"""docs/schedule.md: its examples are what they claim, and it explains every rule and pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zcompiler.passes.pipeline import PASSES, parse_pipeline
from zcompiler.schedule.text import parse_schedule, print_schedule
from zcompiler.schedule.verify import RULES, verify

TEXT = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text()


def test_the_example_is_a_canonical_schedule() -> None:
    (example,) = re.findall(r"```zsched\n(.*?)```", TEXT, re.DOTALL)
    schedule = parse_schedule(example)
    assert verify(schedule) == [] and print_schedule(schedule) == example


def test_every_rule_and_pass_is_explained() -> None:
    assert [rule for rule in RULES if f"| `{rule}` |" not in TEXT] == []
    assert [p.name for p in PASSES if f"**`{p.name}" not in TEXT] == []


def test_the_example_pipeline_is_one() -> None:
    (spec,) = re.findall(r"^`(partition-params\{.*\})`\.$", TEXT, re.MULTILINE)
    assert [p.name for p in parse_pipeline(spec)] == [p.name for p in PASSES]


def test_the_times_of_the_example_are_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```zsched\n(.*?)```", TEXT, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    exec(code, {"schedule": parse_schedule(example)})
    assert capsys.readouterr().out == printed
