"""The schedules that these tests compare: one through the whole pipeline, and the same with a pass left out."""

from __future__ import annotations

from pathlib import Path

from zcompiler.cli.opt import read_golden
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.text import parse_schedule

GOLDENS = Path(__file__).parents[1] / "passes" / "pipeline"
ONE_RANK = GOLDENS / "one-rank-on-a-cpu.zsched"


def golden(path: Path, without: str = "") -> Schedule:
    """A pipeline golden's schedule, after all its passes but this one."""
    read = read_golden(path.read_text())
    passes = tuple(p for p in parse_pipeline(read.passes) if p.name != without)
    return run_pipeline(parse_schedule(read.given), passes)
