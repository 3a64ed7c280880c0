"""The schedules that these tests compare: some through a whole pipeline, with a pass left out, in other words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from zcompiler.cli.opt import read_golden
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.text import parse_schedule, print_schedule

TIMES = Path(__file__).parents[1] / "schedule" / "times"
GOLDENS = Path(__file__).parents[1] / "passes" / "pipeline"
ONE_RANK = GOLDENS / "one-rank-on-a-cpu.zsched"


def golden(path: Path, without: str = "") -> Schedule:
    """A pipeline golden's schedule, after all its passes but this one."""
    read = read_golden(path.read_text())
    passes = tuple(p for p in parse_pipeline(read.passes) if p.name != without)
    return run_pipeline(parse_schedule(read.given), passes)


def in_words(schedule: Schedule, names: Mapping[str, str]) -> Schedule:
    """The schedule with other names for these values and regions."""
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = rf"(?<![\w.:/\[-])({'|'.join(longest_first)})(?=[\s)]|:full@|:shard@)"
    return parse_schedule(re.sub(pattern, lambda found: names[found[0]], print_schedule(schedule)))
