"""The stages in the order in which a graph passes through them, up to its finished schedule. The table of contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from zcompiler.analyse.buckets import buckets_of
from zcompiler.capture.captured import Captured, Input, Tilings, cut_inference, name_inputs, partition_and_cut
from zcompiler.capture.loss import tile_losses
from zcompiler.capture.tile import copied
from zcompiler.capture.tiling import choose_tiles
from zcompiler.errors import DoesNotFit
from zcompiler.logs import stage
from zcompiler.options import Activations, OptionError, Place
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.choose import choose_activations
from zcompiler.plan.file import GivenPlan
from zcompiler.plan.plan import KINDS, Plan
from zcompiler.plan.planner import Question, make_plan
from zcompiler.schedule.model import Schedule
from zcompiler.stages.around import Around, tiers_of
from zcompiler.stages.form import Form
from zcompiler.stages.given import check_given
from zcompiler.stages.planned import Planned
from zcompiler.stages.range import sizes_now, with_range
from zcompiler.torch_compat import joint_passes

_Capture = tuple[torch.fx.GraphModule, torch.fx.GraphModule, Captured, Captured]


class Stages:
    """One graph on its way. AOTAutograd calls `partition` or `inference`; each gives the graphs that it goes on with,
    and the planned one. DoesNotFit with the smallest limit that would do."""

    def __init__(
        self,
        around: Around,
        name: str,
        graph_module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        tile: tuple[tuple[str, int], ...],
        why: Sequence[str] = (),
    ) -> None:
        """`tile`: which weights are in tiles, as in the option; `why`: reasons for that. Changes the graph."""
        self.around, self.name, self.graph_module = around, name, graph_module
        self._tile, self._why = tile, tuple(why)
        self.inputs: Sequence[Any] = inputs
        self.named = self._managed(name_inputs(graph_module, inputs))
        names = {i.position: i.name for i in self.named if i.unit is not None}
        chosen = choose_tiles(tile, names, inputs, around.tiled)
        self.tilings = Tilings({p: tiling for p, tiling in chosen.items() if not self._stays(p)}, chosen)
        self.losses = tile_losses(graph_module, chosen)
        for left in self.losses.left:
            around.note(left)

    def partition(
        self, joint: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, Planned]:
        """Forward and backward."""
        captures: dict[frozenset[str], _Capture] = {}
        memory = self.around.options.memory
        units = list(dict.fromkeys(i.unit for i in self.named if i.unit is not None))

        def capture(activations: Activations) -> _Capture:
            again = frozenset(unit for unit in units if activations.recomputes(unit))
            if again in captures:
                return captures[again]
            with stage(f"{self.name}: capture"):
                captures[again] = partition_and_cut(
                    copied(joint), joint_inputs, self.named, num_fwd_outputs, self.around.fused,
                    again.__contains__, self.tilings, **kwargs,
                )  # fmt: skip
            return captures[again]

        def planned(activations: Activations) -> tuple[tuple[_Capture, Planned], Plan]:
            found = capture(activations)
            made = self._planned(found[2], found[3], activations)
            return (found, made), made.plan

        def without(activations: Activations) -> Plan:
            found = capture(activations)
            return self._planned(found[2], found[3], activations, counted=False).plan

        if (given := self._given()) is not None:
            found = capture(given.activations)
            made_so = self._planned(found[2], found[3], given.activations, given=given)
            return found[0], found[1], with_range(made_so, memory)
        (made, chosen), plan, why = choose_activations(self.around.options.activations, units, planned, without)
        chosen = replace(chosen, plan=replace(plan, reasons=(*plan.reasons, *why)))
        return made[0], made[1], with_range(chosen, memory)

    def inference(self, graph_module: torch.fx.GraphModule) -> Planned:
        """A graph that has no backward."""
        if self.around.fused:
            graph_module = joint_passes(graph_module)
        cuts = cut_inference(graph_module, self.named, self.tilings, self.around.fused)
        planned = self._planned(*cuts, Activations(), given=self._given())
        return with_range(planned, self.around.options.memory)

    def parameters(self, planned: Planned) -> list[torch.Tensor]:
        """Those that the plan places."""
        return [self.inputs[p] for b in planned.buckets for p in b.positions]

    def _planned(
        self,
        captured: Captured,
        tiled: Captured,
        activations: Activations,
        counted: bool = True,
        given: GivenPlan | None = None,
    ) -> Planned:
        """`counted`: whether activations are; `given`: the decisions, if they are not to be made here."""
        around, name = self.around, self.name
        around = replace(around, options=replace(around.options, activations=activations))
        buckets = buckets_of(captured, self.inputs, self._decided)
        taken = around.taken([self.inputs[p] for b in buckets for p in b.positions])
        tiers = tiers_of(around.parts, taken)
        plain = Form(name, captured, buckets, around, tiers, counted)
        rows = plain
        if tiled.tiles:
            rows = Form(name, tiled, buckets_of(tiled, self.inputs, self._decided), around, tiers, counted, "rows")
        with stage(f"{name}: plan"):
            form, plan = self._plan(plain, rows, taken) if given is None else self._as_given(given, plain, rows, taken)
        plan = replace(plan, form=form.kind, tile=self._tile)
        if given is None:
            plan = replace(plan, reasons=(*plan.reasons, *self._why))
        at = partial(form.at, placement=plan.placement)
        return Planned(name, form.captured, form.buckets, form.placed(plan.placement), plan, taken, at)

    def _plan(self, plain: Form, rows: Form, taken: int) -> tuple[Form, Plan]:
        """Parameters that stay in memory are used as they are. Where they have to go, what tiles need is gathered
        (`rows`), and the copies that the graph casts parameters to: half the bytes."""
        place, compute_tier = self.around.options.place, self.around.parts.compute
        if place.params == "host":
            return plain, self._plan_for(plain, place, taken)
        low = rows.with_low(self.inputs, self._stays, self._decided)
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

    def _given(self) -> GivenPlan | None:
        """The plan for this graph that the user has given, if there is one."""
        file, name = self.around.given, self.name
        if file is None:
            return None
        if name not in file.graphs:
            self.around.note(f"{file.where} has no {name}, only {', '.join(file.graphs)}: {name} is planned anew")
        return file.graphs.get(name)

    def _as_given(self, given: GivenPlan, plain: Form, rows: Form, taken: int) -> tuple[Form, Plan]:
        """The plan of these decisions. OptionError where they are not for this graph."""
        file = self.around.given
        assert file is not None
        form = plain if given.form == "plain" else rows
        if given.form == "low":
            form = rows.with_low(self.inputs, self._stays, self._decided) or rows
        known = {b.name: dict(self._decided(b.positions[0])) for b in form.buckets}
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
        known = {b.name: dict(self._decided(b.positions[0])) for b in form.buckets}
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

    def _decided(self, position: int) -> tuple[tuple[str, str], ...]:
        """The homes, by kind, that earlier graphs chose for this parameter."""
        return self.around.decided(self.inputs[position])

    def _stays(self, position: int) -> bool:
        """Whether earlier graphs decided for good to hold this parameter in memory."""
        return ("params", self.around.parts.compute) in (found := self._decided(position)) and len(found) == len(KINDS)

    def _managed(self, named: tuple[Input, ...]) -> tuple[Input, ...]:
        """Parameters that zinf cannot move stay what they are to the graph: ordinary inputs."""
        left: dict[str, list[str]] = {}
        kept = []
        for i in named:
            why = self.around.why_left(self.inputs[i.position]) if i.unit is not None else None
            kept.append(Input(i.position, i.name) if why else i)
            if why and self.inputs[i.position].numel():
                left.setdefault(why, []).append(i.name)
        for why, names in left.items():
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.around.note(f"parameter {names[0]}{others} cannot be moved and stays in ordinary memory: {why}")
        return tuple(kept)


def _evaluate(schedule: Schedule, pipeline: str) -> Schedule:
    return run_pipeline(schedule, parse_pipeline(pipeline), trial=True)
