"""The `zinf` backend: the stages in the order in which a graph passes through them. The table of contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.fx

from zcompiler.analyse.buckets import Bucket, buckets_of
from zcompiler.capture.captured import Captured, Input, cut_inference, name_inputs, partition_and_cut
from zcompiler.capture.low import with_low_parameters
from zcompiler.lower.graph import CompiledGraph
from zcompiler.options import OptionError
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Homes, Plan
from zcompiler.plan.planner import make_plan
from zcompiler.plan.step import Step, bare_step
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Schedule, Tier
from zcompiler.torch_compat import compile_through_aot, frame_in_compilation, give_no_buffers_away, joint_passes
from zcompiler.training.dump import Dump
from zcompiler.training.observed import observe
from zcompiler.training.optimizers import watch_optimizers
from zcompiler.training.registry import record_of
from zcompiler.training.residence import LiveResidence, homes_of
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
    return compile_through_aot(
        graph_module,
        inputs,
        forward=building.forward,
        backward=building.backward,
        inference=building.inference,
        partition=building.partition,
        inductor=building.inductor,
    )


class _Building:
    """One graph on its way through the stages. AOTAutograd calls the methods, in this order."""

    def __init__(self, session: Session, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.session = session
        self.inputs: Sequence[Any] = inputs
        self.inductor = session.compute == "inductor"
        self.named = self._managed(name_inputs(graph_module, inputs))
        self.graph: CompiledGraph | None = None

    def partition(
        self, joint: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward, backward, captured = partition_and_cut(
            joint, joint_inputs, self.named, num_fwd_outputs, self.inductor, **kwargs
        )
        self.graph = self._build(captured)
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
        self.graph = self._build(cut_inference(graph_module, self.named))
        self.inputs = ()
        return self.graph.lower_forward()

    def _build(self, captured: Captured) -> CompiledGraph:
        session = self.session
        name = f"graph{session.graphs}"
        buckets = buckets_of(captured, self.inputs)
        parameters = [self.inputs[p] for b in buckets for p in b.positions]
        taken = session.resting_in_memory(parameters)
        tiers = session.tiers_without(taken)
        plain = _Form(name, captured, buckets, session, tiers)
        low = with_low_parameters(captured)
        bare = _Bare(plain, _Form(name, low, buckets_of(low, self.inputs), session, tiers), session.store_tier)
        plan = self._plan(bare, parameters, taken)
        form = bare.form(plan.homes)
        if form.captured.low and not session.store().notices_edits():
            session.note(
                "the file system of option nvme does not tell when a mapped file is written, so parameters that are "
                "cast to 16 bits are read as they rest, in twice the bytes"
            )
            form, bare = plain, _Bare(plain, plain, session.store_tier)
            plan = self._plan(bare, parameters, taken)
        if session.store_tier in (plan.homes.params, plan.homes.grads, plan.homes.optimizer):
            session.store()
            frame, before = frame_in_compilation()
            # The first model of a class goes on with its graph. The others come with ordinary parameters, which become
            # observed when they are taken over: all of them share one more graph.
            if not before or frame not in session.frames:
                for p in parameters:
                    observe(p)
            session.frames.add(frame)
        dump = Dump(session.options.dump, name)
        dump.plan(plan, str(session.machine))
        dump.schedule("bare", bare.schedule(plan.homes))
        schedule = run_pipeline(bare.schedule(plan.homes), parse_pipeline(plan.pipeline), dump.schedule)
        dump.schedule("final", schedule)
        session.graphs += 1
        session.schedules[name], session.plans[name] = schedule, plan
        return CompiledGraph(
            form.captured,
            form.buckets,
            bare.step(plan.homes),
            schedule,
            executor=session.executor,
            residence=LiveResidence(session, plan.homes, plan.peak[session.compute_tier]),
            compiler=session.compiler,
            compute=session.compute,
            note=session.note,
            measured=session.measured,
            between_phases=session.between_phases,
        )

    def _plan(self, bare: _Bare, parameters: Sequence[torch.Tensor], taken: int) -> Plan:
        compute, store = self.session.compute_tier, self.session.store_tier
        return make_plan(bare.schedule, self.session.options, compute, store, _evaluate, homes_of(parameters), taken)

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
    """A graph over parameters as they rest, or over their cast copies, with its schedule before any pass."""

    def __init__(
        self, name: str, captured: Captured, buckets: tuple[Bucket, ...], session: Session, tiers: tuple[Tier, ...]
    ) -> None:
        self.captured, self.buckets = captured, buckets
        self._name, self._tiers, self._factor = name, tiers, states_per_parameter_byte(session.options)

    @cached_property
    def step(self) -> Step:
        states = {b.name: b.whole * self._factor for b in self.buckets} if self.captured.backward is not None else {}
        return bare_step(self._name, self.captured, self.buckets, self._tiers, states)


class _Bare:
    """The schedule before any pass, for each placement that the planner tries.

    Only what is read from the store is read as cast copies: parameters in memory are there already.
    """

    def __init__(self, plain: _Form, low: _Form, store: str) -> None:
        self._plain, self._low, self._store = plain, low, store

    def form(self, homes: Homes) -> _Form:
        return self._low if homes.params == self._store else self._plain

    def step(self, homes: Homes) -> Step:
        return self.form(homes).step.placed(homes)

    def schedule(self, homes: Homes) -> Schedule:
        return self.step(homes).schedule


def _evaluate(schedule: Schedule, pipeline: str) -> dict[str, tuple[int, str]]:
    return peak(run_pipeline(schedule, parse_pipeline(pipeline), partial=True))
