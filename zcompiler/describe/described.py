"""What a description is: frozen data, and its text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zcompiler.errors import ZinfError, did_you_mean
from zcompiler.machine.choose import Chosen
from zcompiler.machine.work import Work
from zcompiler.options import Options
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.file import MadeFor, format_plans
from zcompiler.plan.plan import Plan
from zcompiler.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Described:
    """One graph. `passes` are its schedules by title: "bare", after each pass, "final"; `reasons` is the text of the
    plan; `works` has the work of each run; `ops` is the text of its operators, region by region; `distinct` has one
    text for each region that is compiled, the same for equal ones."""

    name: str
    plan: Plan
    reasons: str
    passes: tuple[tuple[str, Schedule], ...]
    works: Mapping[str, Work]
    ops: str
    distinct: frozenset[str] = frozenset()

    @property
    def final(self) -> Schedule:
        return self.passes[-1][1]

    @property
    def trains(self) -> bool:
        """Whether it has a backward."""
        return any(region.phase == "bwd" for region in self.final.regions)

    def after(self, title: str) -> Schedule:
        """The schedule after a pass. ZinfError names the passes there are."""
        found = dict(self.passes).get(title)
        if found is None:
            titles = [known for known, _ in self.passes]
            raise ZinfError(
                f"no schedule of {self.name} is called {title!r}{did_you_mean(title, titles)}; "
                f"there are {', '.join(titles)}"
            )
        return found

    def through(self, pipeline: str) -> Described:
        """The same with other passes than the plan's, given as text. PipelineError, PassError as for `run_pipeline`."""
        passes = [("bare", self.after("bare"))]
        final = run_pipeline(passes[0][1], parse_pipeline(pipeline), lambda title, s: passes.append((title, s)))
        return replace(self, passes=(*passes, ("final", final)))


@dataclass(frozen=True, slots=True)
class Schedules:
    """What zinf would do for a model. `update`: the schedule of an optimizer step, from the second on, if any of its
    parameters or states are in the store; `late`: whether it goes on beside the next forward; `fused`: whether in one
    kernel. `notes` are the fallbacks that zinf would warn of. `str()` is the text: of each graph the plan as a comment
    and the finished schedule, and in the end that of the update."""

    graphs: tuple[Described, ...]
    update: Schedule | None
    late: bool
    fused: bool
    options: Options
    machine: Chosen
    notes: tuple[str, ...]
    made_for: MadeFor

    @property
    def plans(self) -> str:
        """The plans of all graphs, as the text of a file that the option `plan` takes."""
        return format_plans({graph.name: graph.plan for graph in self.graphs}, self.made_for)

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write `plans` to a file. OSError as for any file."""
        Path(path).write_text(self.plans, encoding="utf-8")

    @property
    def compiled(self) -> int:
        """How many regions are compiled: equal ones of all graphs are one."""
        return len(frozenset().union(*(graph.distinct for graph in self.graphs)))

    def __str__(self) -> str:
        parts = [f"{heading(graph.name, graph.reasons)}{graph.final}" for graph in self.graphs]
        if self.update is not None:
            parts.append(f"{heading('update', '')}{self.update}")
        return "\n".join(parts)


def heading(name: str, reasons: str) -> str:
    """As comments of a schedule."""
    return "".join(f"# {line}\n" for line in (name, *reasons.splitlines()))
