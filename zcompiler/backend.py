"""The `zinf` backend: the stages in the order in which a graph passes through them. The table of contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.fx

from zcompiler.analyse.buckets import Bucket, buckets_of
from zcompiler.capture.captured import Captured, Input, Tilings, cut_inference, name_inputs, partition_and_cut
from zcompiler.capture.loss import tile_losses
from zcompiler.capture.low import with_low_parameters
from zcompiler.capture.tiling import choose_tiles
from zcompiler.errors import DoesNotFit
from zcompiler.lower.graph import CompiledGraph
from zcompiler.options import OptionError, Place
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import KINDS, Placement, Plan
from zcompiler.plan.planner import Question, make_plan
from zcompiler.plan.saved import with_room_for_copies
from zcompiler.plan.step import Step, bare_step
from zcompiler.schedule.model import Schedule, Tier
from zcompiler.torch_compat import compile_through_aot, frame_in_compilation, give_no_buffers_away, joint_passes
from zcompiler.training.dump import Dump
from zcompiler.training.observed import observe
from zcompiler.training.optimizers import watch_optimizers
from zcompiler.training.registry import record_of
from zcompiler.training.residence import LiveResidence
from zcompiler.training.returned import with_returned_logits
from zcompiler.training.session import Session, session_for, states_per_parameter_byte
from zcompiler.training.tensors import why_not_managed


def zinf(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    **others: object,
) -> Callable[..., Any]:
    """Compile one Dynamo graph for states that rest where the plan says.

    Called by `torch.compile(model, backend="zinf", options=...)`; docs/options.md has the options. Raises OptionError,
    StoreError or DoesNotFit before anything is changed.
    """
    if others:
        raise OptionError(f"zinf takes options={{...}} and nothing else; leave out {', '.join(others)}")
    session = session_for(options)
    watch_optimizers()
    building = _Building(session, graph_module, inputs)
    compiled = compile_through_aot(
        graph_module,
        inputs,
        forward=building.forward,
        backward=building.backward,
        inference=building.inference,
        partition=building.partition,
        inductor=building.inductor,
    )
    return with_returned_logits(compiled, building.losses)


Decided = Callable[[int], tuple[tuple[str, str], ...]]  # Dynamo position -> (kind of state, its home), where known


class _Building:
    """One graph on its way through the stages. AOTAutograd calls the methods, in this order."""

    def __init__(self, session: Session, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.session = session
        self.inputs: Sequence[Any] = inputs
        self.inductor = session.compute == "inductor"
        self.named = self._managed(name_inputs(graph_module, inputs))
        names = {i.position: i.name for i in self.named if i.unit is not None}
        chosen = choose_tiles(session.options.tile, names, inputs, session.tiled)
        stored = {p: tiling for p, tiling in chosen.items() if not self._stays(p)}
        self.tilings = Tilings(stored, chosen)
        self.losses = tile_losses(graph_module, chosen)
        for left in self.losses.left:
            session.note(left)
        self.graph: CompiledGraph | None = None

    def partition(
        self, joint: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward, backward, captured, tiled = partition_and_cut(
            joint,
            joint_inputs,
            self.named,
            num_fwd_outputs,
            self.inductor,
            self.session.options.activations.recomputes,
            self.tilings,
            **kwargs,
        )
        self.graph = self._build(captured, tiled)
        self.inputs = ()  # AOTAutograd keeps this object for the backward; the user's model must not live on with it
        return forward, backward

    def forward(self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        assert self.graph is not None
        give_no_buffers_away()
        return self.graph.lower_forward()

    def backward(self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        assert self.graph is not None
        return self.graph.lower_backward()

    def inference(self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        if self.inductor:
            graph_module = joint_passes(graph_module)
        self.graph = self._build(*cut_inference(graph_module, self.named, self.tilings, self.inductor))
        self.inputs = ()
        return self.graph.lower_forward()

    def _build(self, captured: Captured, tiled: Captured) -> CompiledGraph:
        session = self.session
        name = f"graph{session.graphs}"
        buckets = buckets_of(captured, self.inputs, self._decided)
        parameters = [self.inputs[p] for b in buckets for p in b.positions]
        taken = session.resting_in_memory(parameters)
        tiers = session.tiers_without(taken)
        plain = _Form(name, captured, buckets, session, tiers)
        rows = plain
        if tiled.tiles:
            rows = _Form(name, tiled, buckets_of(tiled, self.inputs, self._decided), session, tiers)
        form, plan = self._plan(plain, rows, taken)
        step = form.placed(plan.placement)
        if plan.uses(session.store_tier):
            session.store()
            frame, before = frame_in_compilation()
            # The first model of a class goes on with its graph. The others come with ordinary parameters, which become
            # observed when they are taken over: all of them share one more graph.
            if not before or frame not in session.frames:
                for p in parameters:
                    observe(p)
            session.frames.add(frame)
        dump = Dump(session.options.dump, name)
        dump.plan(plan, str(session.machine), form.captured.tiles.values(), self.losses.done)
        dump.schedule("bare", step.schedule)
        schedule = run_pipeline(step.schedule, parse_pipeline(plan.pipeline), dump.schedule)
        dump.schedule("final", schedule)
        if any(v.kind == "act" and v.home == session.store_tier for v in schedule.values):
            session.store()
        session.graphs += 1
        session.schedules[name], session.plans[name], session.works[name] = schedule, plan, step.works
        return CompiledGraph(
            form.captured,
            form.buckets,
            step,
            schedule,
            executor=session.executor,
            residence=LiveResidence(
                session, plan.placement, plan.peak[session.compute_tier], captured.backward is not None
            ),
            compiler=session.compiler,
            compute=session.compute,
            note=session.note,
            measured=session.measured,
            between_phases=session.between_phases,
        )

    def _plan(self, plain: _Form, rows: _Form, taken: int) -> tuple[_Form, Plan]:
        """Parameters that stay in memory are used as they are. Where they have to go, what tiles need is gathered
        (`rows`), and the copies that the graph casts parameters to: half the bytes."""
        session = self.session
        place = session.options.place
        if place.params == "host":
            return plain, self._plan_for(plain, place, taken)
        low = rows.with_low(self.inputs, self._stays, self._decided)
        if low is None and rows is plain:
            return plain, self._plan_for(plain, place, taken)
        if place.params == "auto":
            try:
                plan = self._plan_for(plain, replace(place, params="host"), taken)
                if all(homes.params == session.compute_tier for homes in plan.placement.values()):
                    return plain, plan
            except DoesNotFit:
                pass  # then not everything can stay
        if low is None:
            return rows, self._plan_for(rows, place, taken)
        if session.store().notices_edits():
            return low, self._plan_for(low, replace(place, params="nvme"), taken)
        session.note(
            "the file system of option nvme does not tell when a mapped file is written, so parameters that are "
            "cast to 16 bits are read as they rest, in twice the bytes"
        )
        return rows, self._plan_for(rows, place, taken)

    def _plan_for(self, form: _Form, place: Place, taken: int) -> Plan:
        session = self.session
        known = {b.name: dict(self._decided(b.positions[0])) for b in form.buckets}
        final = {name: homes if len(homes) == len(KINDS) else {} for name, homes in known.items()}
        stored = frozenset(b.name for b in form.buckets if b.tile is not None or b.has_tiles)
        options = replace(session.options, place=place)

        def plan(fixed: dict[str, dict[str, str]]) -> Plan:
            bare, names = lambda p: form.placed(p).schedule, tuple(fixed)
            asked = Question(bare, names, form.step.gradients, fixed, taken, form.step.fixed, stored)
            return make_plan(asked, options, session.compute_tier, session.store_tier, _evaluate)

        if known == final or form.captured.low or stored:  # neither a copy nor a tile is used of what is in memory
            return plan(final)
        try:
            return plan(known)
        except DoesNotFit:
            return plan(final)  # what only evaluations have held in memory goes when it cannot stay

    def _decided(self, position: int) -> tuple[tuple[str, str], ...]:
        """The homes, by kind, that earlier graphs chose for this parameter."""
        record = record_of(self.inputs[position])
        return record.unit.decided() if record is not None else ()

    def _stays(self, position: int) -> bool:
        """Whether earlier graphs decided for good to hold this parameter in memory."""
        return ("params", self.session.compute_tier) in (found := self._decided(position)) and len(found) == len(KINDS)

    def _managed(self, named: tuple[Input, ...]) -> tuple[Input, ...]:
        """Parameters that zinf cannot move stay what they are to the graph: ordinary inputs."""
        left: dict[str, list[str]] = {}
        kept = []
        for i in named:
            why = None
            if i.unit is not None:
                record = record_of(self.inputs[i.position])
                if record is None or not record.fits(self.inputs[i.position]):
                    why = why_not_managed(self.inputs[i.position])
            kept.append(Input(i.position, i.name) if why else i)
            if why and self.inputs[i.position].numel():
                left.setdefault(why, []).append(i.name)
        for why, names in left.items():
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self.session.note(f"parameter {names[0]}{others} cannot be moved and stays in ordinary memory: {why}")
        return tuple(kept)


class _Form:
    """A graph over parameters as they rest, over rows of them, or over their cast copies, with its schedule before any
    pass."""

    def __init__(
        self, name: str, captured: Captured, buckets: tuple[Bucket, ...], session: Session, tiers: tuple[Tier, ...]
    ) -> None:
        self.captured, self.buckets = captured, buckets
        self._name, self._session, self._tiers = name, session, tiers

    @cached_property
    def step(self) -> Step:
        factor = states_per_parameter_byte(self._session.options)
        trains = self.captured.backward is not None
        states = {b.name: b.whole * factor for b in self.buckets if trains and not b.has_tiles}
        fused = self._session.compute == "inductor"
        return bare_step(self._name, self.captured, self.buckets, self._tiers, states, fused)

    def placed(self, placement: Placement) -> Step:
        """The same for a placement, with room for what the user's choice of activations needs."""
        step = self.step.placed(placement)
        return with_room_for_copies(step) if self._session.options.activations.offload else step

    def with_low(self, inputs: Sequence[Any], stays: Callable[[int], bool], decided: Decided) -> _Form | None:
        """The same over the copies in 16 bits, if there are any; not of parameters that it is decided to hold."""
        captured = with_low_parameters(self.captured, stays)
        if not captured.low:
            return None
        return _Form(self._name, captured, buckets_of(captured, inputs, decided), self._session, self._tiers)


def _evaluate(schedule: Schedule, pipeline: str) -> Schedule:
    return run_pipeline(schedule, parse_pipeline(pipeline), trial=True)
