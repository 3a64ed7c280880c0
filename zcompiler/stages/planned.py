"""A graph behind the planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zcompiler.analyse.buckets import Bucket
from zcompiler.analyse.sizes import Sizes
from zcompiler.capture.captured import Captured
from zcompiler.logs import stage
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Plan
from zcompiler.plan.step import Step
from zcompiler.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Planned:
    """`step` is its schedule for the plan's placement before any pass; `taken` the bytes of
    the limit that others hold; `at` gives the schedule of `step` for other sizes of symbols."""

    name: str
    captured: Captured
    buckets: tuple[Bucket, ...]
    step: Step
    plan: Plan
    taken: int
    at: Callable[[Sizes], Schedule]

    def scheduled(self, on_pass: Callable[[str, Schedule], None]) -> Schedule:
        """The finished schedule; `on_pass` gets its title and what it was like before, after each pass, and in the end.

        PassError as for `run_pipeline`.
        """
        on_pass("bare", self.step.schedule)
        with stage(f"{self.name}: passes"):
            schedule = run_pipeline(self.step.schedule, parse_pipeline(self.plan.pipeline), on_pass)
        on_pass("final", schedule)
        return schedule
