"""`zcompiler.explain`: a model planned from its shapes alone, what that costs and why, and what would help."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from zcompiler.advise.changes import Planned, changes
from zcompiler.advise.explained import Explained, Outcome, StepTime
from zcompiler.advise.homes import activations_of, groups_of
from zcompiler.advise.peaks import peaks_of
from zcompiler.advise.waits import last_of, step_time
from zcompiler.describe.describe import MakeOptimizer, describe
from zcompiler.describe.described import Schedules
from zcompiler.describe.times import STEP, timelines
from zcompiler.errors import DoesNotFit
from zcompiler.options import parse_options
from zcompiler.plan.price import STEADY
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes


def explain(
    model: torch.nn.Module,
    inputs: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: MakeOptimizer | None = None,
    options: Mapping[str, object] | None = None,
    train: bool = True,
    tries: bool = True,
) -> Explained:
    """Why `torch.compile(model, backend="zinf", options=options)` would do what it would do, and what would help.

    Takes what `zcompiler.schedule(model, inputs, ...)` takes, and needs no bytes of the model either. Each change it
    names was planned: that takes as long as planning does, five or six times; with `tries` false none is tried. Where
    nothing fits, only the changes that make it fit are given. OptionError, ZinfError as for `zcompiler.schedule`.
    """
    given = dict(options or {})

    def plan(more: Mapping[str, object], batch: Any) -> Schedules:
        return describe(model, batch, loss=loss, optimizer=optimizer, options={**given, **more}, train=train)

    def planned(more: Mapping[str, object], batch: Any) -> Planned:
        found = plan(more, batch)
        return Planned(found, outcome(found, step_of(found)))

    module = getattr(model, "_orig_mod", model)
    try:
        found = plan({}, inputs)
    except DoesNotFit as refusal:
        if not tries:
            raise
        asked = parse_options({k: v for k, v in given.items() if k != "dump"}, environ=os.environ)
        helpful, others = changes(planned, module, inputs, asked, None, "", refusal)
        title = f"{type(module).__name__} within {format_bytes(asked.memory)}"
        return Explained(title, helpful=helpful, others=others, refused=str(refusal))
    notes = list(found.notes)
    step = now = None
    try:
        step = step_of(found)
        now = outcome(found, step)
    except MemoryError as error:  # the plan counts less than a step holds: say so, and what can be said without times
        notes.append(f"a step cannot be simulated, so there are no times, and no changes are tried: {error}")
    every = all_of(found)
    peaks = tuple(peak for schedule in every for peak in peaks_of(schedule))
    most = max(peaks, key=lambda peak: peak.nbytes)
    helpful, others = changes(planned, module, inputs, found.options, now, most.at, None) if tries and now else ((), ())
    kind = "a training step" if any(graph.trains for graph in found.graphs) else "a forward"
    return Explained(
        f"{type(module).__name__}: {kind} within {format_bytes(found.options.memory)}, on {found.machine}",
        groups_of(graph.final for graph in found.graphs),
        activations_of(graph.final for graph in found.graphs),
        tuple(_reasons(found)),
        peaks,
        step,
        now,
        helpful,
        others,
        notes=tuple(notes),
    )


def all_of(found: Schedules) -> list[Schedule]:
    """The finished schedules, that of the update included."""
    update = [found.update] if found.update is not None else []
    return [graph.final for graph in found.graphs] + update


def step_of(found: Schedules) -> StepTime:
    """A steady step, in which what a late update leaves over from the step before counts. MemoryError if one does not
    fit."""
    steps = STEADY if found.late and found.update is not None else 1
    parts = [last_of(timeline, steps if name == STEP else 1) for name, timeline in timelines(found, steps).items()]
    machine = found.machine.machine
    in_place = machine.update_seconds(_updated_in_place(found), found.fused)
    return step_time(parts, all_of(found), str(found.machine), in_place)


def outcome(found: Schedules, step: StepTime) -> Outcome:
    compute = found.graphs[0].final.compute_tier.name
    return Outcome(step.seconds, sum(step.moved.values()), step.peak[compute])


def _updated_in_place(found: Schedules) -> int:
    """Bytes of parameters that the optimizer updates where they are: their gradients say how many have any."""
    sizes: dict[str, int] = {}
    for graph in found.graphs:
        compute = graph.final.compute_tier.name
        for value in graph.final.values:
            homes = graph.plan.placement.get(value.name.removesuffix(":grad"))
            if value.kind == "grad" and homes is not None and homes.params == homes.optimizer == compute:
                sizes[value.name] = value.nbytes
    return sum(sizes.values())


def _reasons(found: Schedules) -> Iterator[str]:
    """Those of the plans, but for the time of a step with an update that is assumed: the real one is known here."""
    for graph in found.graphs:
        of = f"{graph.name}: " if len(found.graphs) > 1 else ""
        yield from (f"{of}{reason}" for reason in graph.plan.reasons if not reason.startswith("a step is to take"))
