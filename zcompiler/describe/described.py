"""What a description is: frozen data, and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompiler.machine.choose import Chosen
from zcompiler.machine.work import Work
from zcompiler.options import Options
from zcompiler.plan.plan import Plan
from zcompiler.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class Described:
    """One graph. `passes` are its schedules by title: "bare", after each pass, "final"; `reasons` is the text of the
    plan; `works` has the work of each run."""

    name: str
    plan: Plan
    reasons: str
    passes: tuple[tuple[str, Schedule], ...]
    works: Mapping[str, Work]

    @property
    def final(self) -> Schedule:
        return self.passes[-1][1]

    @property
    def trains(self) -> bool:
        """Whether it has a backward."""
        return any(region.phase == "bwd" for region in self.final.regions)

    def after(self, title: str) -> Schedule:
        """The schedule after a pass. LookupError names the passes there are."""
        for known, schedule in self.passes:
            if known == title:
                return schedule
        there = ", ".join(known for known, _ in self.passes)
        raise LookupError(f"{self.name} has no schedule after {title!r}, only after {there}")


@dataclass(frozen=True, slots=True)
class Schedules:
    """What zinf would do for a model. `update`: the schedule of an optimizer step, from the second on, if any of its
    parameters or states are in the store; `late`: whether it goes on beside the next forward. `notes` are the fallbacks
    that zinf would warn of. `str()` is the text: of each graph the plan as a comment and the finished schedule, and in
    the end that of the update."""

    graphs: tuple[Described, ...]
    update: Schedule | None
    late: bool
    options: Options
    machine: Chosen
    notes: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{heading(graph.name, graph.reasons)}{graph.final}" for graph in self.graphs]
        if self.update is not None:
            parts.append(f"{heading('update', '')}{self.update}")
        return "\n".join(parts)


def heading(name: str, reasons: str) -> str:
    """As comments of a schedule."""
    return "".join(f"# {line}\n" for line in (name, *reasons.splitlines()))
