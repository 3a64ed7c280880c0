"""Which form of a graph is used, and its plan: chosen by the planner, or as a given plan says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from zcompiler.errors import DoesNotFit
from zcompiler.options import OptionError, Place
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.file import GivenPlan
from zcompiler.plan.plan import KINDS, UNCUT, Plan
from zcompiler.plan.planner import Question, make_plan
from zcompiler.schedule.model import Schedule
from zcompiler.stages.around import Around
from zcompiler.stages.form import Form
from zcompiler.stages.given import check_given
from zcompiler.stages.range import sizes_now


class Choice:
    """For one graph; `inputs` are Dynamo's."""

    def __init__(self, around: Around, inputs: Sequence[Any]) -> None:
        self.around, self.inputs = around, inputs

    def plan(self, plain: Form, rows: Form, taken: int) -> tuple[Form, Plan]:
        """Parameters that stay in memory are used as they are. Where they have to go, what tiles need is gathered
        (`rows`), and the copies that the graph casts parameters to: half the bytes."""
        place, compute_tier = self.around.options.place, self.around.parts.compute
        if place.params == "host":
            return plain, self._plan_for(plain, place, taken)
        low = rows.with_low(self.inputs, self.stays, self.decided)
        if low is None and rows is plain:
            return plain, self._plan_for(plain, place, taken)
        if place.params == "auto":
            try:
                plan = self._plan_for(plain, replace(place, params="host"), taken)
                if all(homes.params == compute_tier for homes in plan.placement.values()):
                    return plain, plan
            except DoesNotFit:
                pass  # then not everything can stay
        if low is None:
            return rows, self._plan_for(rows, place, taken)
        if self.around.notices_edits():
            return low, self._plan_for(low, replace(place, params="nvme"), taken)
        self.around.note(
            "the file system of option nvme does not tell when a mapped file is written, so parameters that are "
            "cast to 16 bits are read as they rest, in twice the bytes"
        )
        return rows, self._plan_for(rows, place, taken)

    def as_given(self, given: GivenPlan, plain: Form, rows: Form, taken: int) -> tuple[Form, Plan]:
        """The plan of these decisions. OptionError where they are not for this graph."""
        file = self.around.given
        assert file is not None
        form = plain if given.form in ("plain", UNCUT) else rows
        if given.form == "low":
            form = rows.with_low(self.inputs, self.stays, self.decided) or rows
        known = {b.name: dict(self.decided(b.positions[0])) for b in form.buckets}
        check_given(given, form, known, self.around.parts, f"{file.where}, {form.name}")
        if form.kind == "low" and not self.around.notices_edits():
            raise OptionError(
                f"{file.where}, {form.name}: it reads copies in 16 bits, and the file system of option nvme does not "
                "tell when a mapped file is written: name another folder, or leave out option plan"
            )
        plan = self._plan_for(form, self.around.options.place, taken, given)
        if file.made_for == self.around.made_for and given.is_repeated_by(plan):
            return form, replace(plan, reasons=given.reasons)
        return form, replace(plan, reasons=(f"as given; made for {file.made_for}", *plan.reasons))

    def _plan_for(self, form: Form, place: Place, taken: int, given: GivenPlan | None = None) -> Plan:
        known = {b.name: dict(self.decided(b.positions[0])) for b in form.buckets}
        final = {name: homes if len(homes) == len(KINDS) else {} for name, homes in known.items()}
        stored = frozenset(b.name for b in form.buckets if b.tile is not None or b.has_tiles)
        options, parts = replace(form.options, place=place), self.around.parts
        if given is not None:
            options = replace(options, prefetch=given.prefetch)

        def plan(fixed: dict[str, dict[str, str]]) -> Plan:
            bare, names = lambda p: form.placed(p).schedule, tuple(fixed)
            asked = Question(
                bare, names, form.step.gradients, fixed, taken, form.step.fixed, stored,
                self.around.machine, form.step.works, sizes_now(form.captured, self.around.holds()),
            )  # fmt: skip
            return make_plan(asked, options, parts.compute, parts.store, _evaluate)

        if given is not None:
            return plan({b.name: asdict(given.placement[b.name]) for b in form.buckets})
        if known == final or form.captured.low or stored:  # neither a copy nor a tile is used of what is in memory
            return plan(final)
        try:
            return plan(known)
        except DoesNotFit:
            return plan(final)  # what only evaluations have held in memory goes when it cannot stay

    def decided(self, position: int) -> tuple[tuple[str, str], ...]:
        """The homes, by kind, that earlier graphs chose for this parameter."""
        return self.around.decided(self.inputs[position])

    def stays(self, position: int) -> bool:
        """Whether earlier graphs decided for good to hold this parameter in memory."""
        return ("params", self.around.parts.compute) in (found := self.decided(position)) and len(found) == len(KINDS)


def _evaluate(schedule: Schedule, pipeline: str) -> Schedule:
    return run_pipeline(schedule, parse_pipeline(pipeline), trial=True)
