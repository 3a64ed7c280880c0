"""The `zinf` backend: a graph goes through the stages to its schedule, and on to the callables that torch runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from zcompiler.capture.captured import returns_views
from zcompiler.logs import start_logging
from zcompiler.lower.graph import CompiledGraph
from zcompiler.options import OptionError
from zcompiler.stack import with_room
from zcompiler.stages.around import Around
from zcompiler.stages.dump import Dump, dump_plans, plan_text
from zcompiler.stages.graph import Stages
from zcompiler.stages.planned import Planned
from zcompiler.stages.tiles import in_tiles_if_needed
from zcompiler.torch_compat.compiling import compile_through_aot, give_no_buffers_away
from zcompiler.torch_compat.graphs import frame_in_compilation, hollow
from zcompiler.training.observed import observe
from zcompiler.training.optimizers import watch_optimizers
from zcompiler.training.registry import backward_ended, record_of
from zcompiler.training.residence import LiveResidence
from zcompiler.training.returned import with_returned_logits, with_updated_views
from zcompiler.training.session import Session, session_for
from zcompiler.training.tensors import why_not_managed
from zcompiler.training.told import tell_graph


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
    start_logging(os.environ, logging.getLogger("zinf"))
    session = session_for(options)
    watch_optimizers()

    def compiled(stages: Stages) -> Callable[..., Any]:
        building = _Building(session, stages)
        through = compile_through_aot(
            stages.graph_module,
            inputs,
            forward=building.forward,
            backward=building.backward,
            inference=building.inference,
            partition=building.partition,
            inductor=stages.around.fused,
        )
        if returns_views(stages.graph_module, stages.named):
            through = with_updated_views(through)
        hollow(stages.graph_module)  # Dynamo's own, which lives as long as what is compiled
        return with_returned_logits(through, stages.losses)

    return with_room(in_tiles_if_needed, _around(session), session.next_graph, graph_module, inputs, compiled)


class _Building:
    """One graph on its way through the stages and on. AOTAutograd calls the methods, in this order."""

    def __init__(self, session: Session, stages: Stages) -> None:
        self.session, self.stages = session, stages
        self.graph: CompiledGraph | None = None

    def partition(
        self, joint: torch.fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward, backward, planned = self.stages.partition(
            joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
        )
        self.graph = self._build(planned)
        return forward, backward

    def forward(self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        assert self.graph is not None
        give_no_buffers_away()
        return self.graph.lower_forward()

    def backward(self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        assert self.graph is not None
        return self.graph.lower_backward()

    def inference(self, graph_module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        self.graph = self._build(self.stages.inference(graph_module))
        return self.graph.lower_forward()

    def _build(self, planned: Planned) -> CompiledGraph:
        session, name, plan, captured = self.session, planned.name, planned.plan, planned.captured
        if plan.uses(session.store_tier):
            session.store()
            frame, before = frame_in_compilation()
            # The first model of a class goes on with its graph. The others come with ordinary parameters, which become
            # observed when they are taken over: all of them share one more graph.
            if not before or frame not in session.frames:
                for p in self.stages.parameters(planned):
                    observe(p)
            session.frames.add(frame)
        self.stages.inputs = ()  # AOTAutograd keeps this object for the backward; the model must not live on with it
        dump = Dump(session.options.dump, name)
        dump.plan(plan_text(plan, str(session.machine), captured.tiles.values(), self.stages.losses.done))
        schedule = planned.scheduled(dump.schedule)
        tell_graph(plan, schedule, planned.taken, session)
        if any(v.kind == "act" and v.home == session.store_tier for v in schedule.values):
            session.store()
        session.graphs += 1
        session.trains |= captured.backward is not None
        session.schedules[name], session.plans[name], session.works[name] = schedule, plan, planned.step.works
        dump_plans(session.options.dump, session.plans_text())
        return CompiledGraph(
            captured,
            planned.buckets,
            planned.step,
            schedule,
            executor=session.executor,
            residence=LiveResidence(
                session, plan.placement, plan.peak[session.compute_tier], captured.backward is not None
            ),
            compiler=session.compiler,
            compute=session.compute,
            note=session.note,
            before=session.before,
            measured=session.measured,
            returned=session.returned,
            between_phases=session.between_phases,
            backward_ended=backward_ended,
        )


def _around(session: Session) -> Around:
    """What the live parameters of a session say."""

    def why_left(p: torch.Tensor) -> str | None:
        record = record_of(p)
        return None if record is not None and record.fits(p) else why_not_managed(p)

    def decided(p: torch.Tensor) -> tuple[tuple[str, str], ...]:
        record = record_of(p)
        return record.unit.decided() if record is not None else ()

    return Around(
        options=session.options,
        compute=session.compute,
        parts=session.parts,
        machine=session.machine.machine,
        tiled=session.tiled,
        why_left=why_left,
        decided=decided,
        taken=session.resting_in_memory,
        notices_edits=lambda: session.store().notices_edits(),
        note=session.note,
        made_for=session.made_for,
        given=session.given_plans,
        holds=lambda: [one for plan in session.plans.values() for one in plan.holds],
    )
