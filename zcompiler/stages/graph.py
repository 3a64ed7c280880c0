"""The stages in the order in which a graph passes through them, up to its finished schedule. The table of contents."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.fx

from zcompiler.analyse.buckets import buckets_of
from zcompiler.capture.captured import Captured, Input, Tilings, cut_inference, cut_training, name_inputs, partition
from zcompiler.capture.loss import tile_losses
from zcompiler.capture.tile import copied
from zcompiler.capture.tiling import choose_tiles
from zcompiler.errors import DoesNotFit
from zcompiler.logs import stage
from zcompiler.options import Activations
from zcompiler.plan.choose import choose_activations
from zcompiler.plan.file import GivenPlan
from zcompiler.plan.plan import UNCUT, Plan
from zcompiler.stages.around import Around, tiers_of
from zcompiler.stages.choice import Choice
from zcompiler.stages.collecting import CAPTURING, PLANNING, only_new_garbage
from zcompiler.stages.form import Form
from zcompiler.stages.planned import Planned
from zcompiler.stages.range import with_range
from zcompiler.torch_compat.compiling import joint_passes
from zcompiler.torch_compat.graphs import hollow


class _Forms(NamedTuple):
    """A captured graph without and with tiles (the same if there are none), and the bytes that others have taken."""

    plain: Form
    rows: Form
    taken: int


# Forward and backward as AOTAutograd goes on with them, and what is in them, to be planned or planned.
_Capture = tuple[torch.fx.GraphModule, torch.fx.GraphModule, _Forms]
_Made = tuple[torch.fx.GraphModule, torch.fx.GraphModule, Planned]


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
        self.tilings = Tilings(
            {p: tiling for p, tiling in chosen.items() if not Choice(around, inputs).stays(p)}, chosen
        )
        self.losses = tile_losses(graph_module, chosen)
        for left in self.losses.left:
            around.note(left)

    def partition(
        self, joint: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, Planned]:
        """Forward and backward, without what computes, and what they have become."""
        captures: dict[tuple[frozenset[str], bool], _Capture] = {}  # the last: Python's heap hardly gets smaller again
        memory, fused, whole = self.around.options.memory, self.around.fused, joint
        units = list(dict.fromkeys(i.unit for i in self.named if i.unit is not None))
        if fused:
            with stage(f"{self.name}: joint passes"):
                joint = joint_passes(joint, joint_inputs)

        def capture(activations: Activations, uncut: bool = False) -> _Capture:
            again = frozenset(unit for unit in units if activations.recomputes(unit))
            if (again, uncut) in captures:
                return captures[again, uncut]
            if captures:
                captures.clear()
                gc.collect()  # they are in cycles, and what is not chosen would be held beside this one
            with stage(f"{self.name}: capture"), only_new_garbage(CAPTURING):
                fw, bw = partition(
                    copied(joint), joint_inputs, self.named, num_fwd_outputs, fused, again.__contains__, **kwargs
                )
                cuts = cut_training(fw, bw, self.named, num_fwd_outputs, fused, self.tilings, uncut)
                hollow(fw)
                hollow(bw)
            forms = self._forms(*cuts, UNCUT if uncut else "plain")  # what others hold is collected for it
            captures[again, uncut] = (fw, bw, forms)
            return captures[again, uncut]

        def planned(activations: Activations) -> tuple[_Made, Plan]:
            fw, bw, forms = capture(activations)
            made = self._planned(forms, activations)
            return (fw, bw, made), made.plan

        def without(activations: Activations) -> Plan:
            _, _, forms = capture(activations)
            return self._planned(forms, activations, counted=False).plan

        if (given := self._given()) is not None:
            fw, bw, forms = capture(given.activations, given.form == UNCUT)
            chosen = self._planned(forms, given.activations, given=given)
        else:
            (fw, bw, chosen), plan, why = choose_activations(self.around.options.activations, units, planned, without)
            chosen = replace(chosen, plan=replace(plan, reasons=(*plan.reasons, *why)))
            if self._gains_uncut(plan, units):
                forward, backward, forms = capture(plan.activations, uncut=True)
                if (made := self._uncut(forms, chosen, why)) is not None:
                    fw, bw, chosen = forward, backward, made
        hollow(whole)  # AOTAutograd holds it while the regions are compiled
        return fw, bw, with_range(chosen, memory)

    def inference(self, graph_module: torch.fx.GraphModule) -> Planned:
        """A graph that has no backward."""
        if self.around.fused:
            graph_module = joint_passes(graph_module)
        given = self._given()
        uncut = given is not None and given.form == UNCUT
        cuts = cut_inference(graph_module, self.named, self.tilings, self.around.fused, uncut)
        planned = self._planned(self._forms(*cuts, UNCUT if uncut else "plain"), Activations(), given=given)
        if given is None and self._gains_uncut(planned.plan, ()):
            cuts = cut_inference(graph_module, self.named, self.tilings, self.around.fused, uncut=True)
            planned = self._uncut(self._forms(*cuts, UNCUT), planned, ()) or planned
        return with_range(planned, self.around.options.memory)

    def _gains_uncut(self, plan: Plan, units: Sequence[str]) -> bool:
        """Whether regions are of no use: between them nothing moves, and they keep Inductor from fusing across."""
        keeps = not plan.activations.offload and not any(plan.activations.recomputes(unit) for unit in units)
        return self.around.fused and not plan.moved and keeps and plan.form == "plain"

    def _uncut(self, forms: _Forms, cut: Planned, why: Sequence[str]) -> Planned | None:
        """The same as a single region for each phase, if that fits as well: the gradients are all counted as there
        when backward begins. `why`: the reasons for the activations of `cut`."""
        try:
            whole = self._planned(forms, cut.plan.activations)
        except DoesNotFit:
            return None
        if whole.plan.moved:
            return None
        reasons = (*whole.plan.reasons, *why, "uncut, as nothing has to move between regions")
        return replace(whole, plan=replace(whole.plan, reasons=reasons))

    def parameters(self, planned: Planned) -> list[torch.Tensor]:
        """Those that the plan places."""
        return [self.inputs[p] for b in planned.buckets for p in b.positions]

    def _forms(self, captured: Captured, tiled: Captured, kind: str = "plain") -> _Forms:
        """`kind` of the form of `captured`."""
        around, name = self.around, self.name
        decided = Choice(around, self.inputs).decided
        buckets = buckets_of(captured, self.inputs, decided)
        taken = around.taken([self.inputs[p] for b in buckets for p in b.positions])
        tiers = tiers_of(around.parts, taken)
        plain = rows = Form(name, captured, buckets, around, tiers, kind)
        if tiled.tiles:
            rows = Form(name, tiled, buckets_of(tiled, self.inputs, decided), around, tiers, "rows")
        return _Forms(plain, rows, taken)

    def _planned(
        self, forms: _Forms, activations: Activations, counted: bool = True, given: GivenPlan | None = None
    ) -> Planned:
        """`counted`: whether activations are; `given`: the decisions, if they are not to be made here."""
        around, name, taken = self.around, self.name, forms.taken
        choice = Choice(replace(around, options=replace(around.options, activations=activations)), self.inputs)
        with stage(f"{name}: plan"), only_new_garbage(PLANNING):
            plain = forms.plain.having(activations, counted)
            rows = forms.rows.having(activations, counted) if forms.rows is not forms.plain else plain
            form, plan = (
                choice.plan(plain, rows, taken) if given is None else choice.as_given(given, plain, rows, taken)
            )
        plan = replace(plan, form=form.kind, tile=self._tile)
        if given is None:
            plan = replace(plan, reasons=(*plan.reasons, *self._why))
        at = partial(form.at, placement=plan.placement)
        return Planned(name, form.captured, form.buckets, form.placed(plan.placement), plan, taken, at)

    def _given(self) -> GivenPlan | None:
        """The plan for this graph that the user has given, if there is one."""
        file, name = self.around.given, self.name
        if file is None:
            return None
        if name not in file.graphs:
            self.around.note(f"{file.where} has no {name}, only {', '.join(file.graphs)}: {name} is planned anew")
        return file.graphs.get(name)

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
