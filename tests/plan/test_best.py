"""The planner against all placements there are, by what the simulator says of a step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from tests.plan.steps import KIB, evaluate, layers, planned
from zcompiler.errors import DoesNotFit
from zcompiler.plan.plan import KINDS, Homes, Placement
from zcompiler.plan.spec import pipeline_of
from zcompiler.plan.step import Step
from zcompiler.plan.update import OPTIMIZER_WORK, SMALLEST_SUBGROUP, SubGroup, least_bytes, update_schedule
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Op, Schedule
from zcompiler.schedule.simulate.program import Program, moved_bytes, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import at_once, stored_bytes, subgroup_bytes

RATE = 1e9  # bytes a second, either way
SHARED = {"nvme_read": 0.6, "nvme_write": 0.6}  # of it when the disk reads and writes at once
WITHIN = 1.1


def fullest_placements(step: Step, buckets: Sequence[str], limit: int) -> Iterator[Placement]:
    """Those that fit, but for those that hold only a part of what another that fits holds."""
    each = [Homes(*tiers) for tiers in itertools.product(("host", "nvme"), repeat=3)]
    every = [dict(zip(buckets, homes, strict=True)) for homes in itertools.product(each, repeat=len(buckets))]
    fitting: list[set[tuple[str, str]]] = []
    for placement in sorted(every, key=lambda p: -len(_held(p))):
        if not any(_held(placement) <= more for more in fitting) and fits(step, placement, limit):
            fitting.append(_held(placement))
            yield placement


def _held(placement: Placement) -> set[tuple[str, str]]:
    return {(bucket, kind) for bucket, homes in placement.items() for kind in KINDS if getattr(homes, kind) == "host"}


def step_seconds(step: Step, placement: Placement, prefetch: int, region: float) -> float:
    """Of a step that computes `region` seconds in each region, with the update at its end."""
    spec = pipeline_of(placement, step.gradients, "host", prefetch)
    graph = evaluate(step.placed(placement).schedule, spec)
    size = {v.name: v.nbytes for v in graph.values}
    piece = SMALLEST_SUBGROUP
    groups = [
        SubGroup(f"{name}[{i}]", homes, piece, piece, 2 * piece)
        for name, homes in placement.items()
        for i in range(size[name] // piece)
    ]
    update = update_schedule(groups, graph.tiers)
    parts = (_program(graph, region, stored_bytes(graph)), _program(update, region, subgroup_bytes(update)))
    return simulate(at_once(*parts), SHARED).seconds


def _program(schedule: Schedule, region: float, lag: int) -> Program:
    def seconds(_: str, op: Op) -> float:
        return region if op.kind == "run" else moved_bytes(schedule, op) / RATE

    return prepare(schedule, seconds, lag)


def fits(step: Step, placement: Placement, limit: int) -> bool:
    spec = pipeline_of(placement, step.gradients, "host", 0, ahead=False)
    graph = evaluate(step.placed(placement).schedule, spec)
    size = {v.name: v.nbytes for v in graph.values}
    held, moved = 0, 0.0
    for name, homes in placement.items():
        sizes = {"params": size[name], "grads": size[f"{name}:grad"], "optimizer": size[f"{name}:state"]}
        held += sum(n for kind, n in sizes.items() if getattr(homes, kind) == "host")
        away = sum(n for kind, n in sizes.items() if getattr(homes, kind) != "host")
        moved = max(moved, away / sizes["params"])
    needed = least_bytes(held, moved, OPTIMIZER_WORK) if moved else 0
    return max(peak(graph)["host"][0], needed) <= limit


def test_a_step_takes_at_most_a_tenth_longer_than_with_the_best_placement() -> None:
    """On fifty graphs of nine values, drawn once and for all: the planner promises nothing about every graph. Of two
    hundred others one took 1.3 times as long, where the limit leaves little more than an update's smallest buffers."""
    draw = random.Random(0)
    planned_graphs = 0
    while planned_graphs < 50:
        sizes, saved = ([64 * KIB * draw.randint(least, 40) for _ in range(2)] for least in (4, 1))
        part, region = draw.uniform(0.2, 1.1), draw.choice([0.0, 1e-4, 1e-3, 1e-2])
        limit = int(part * (4 * sum(sizes) + sum(saved)))
        step = layers(sizes, limit, saved)
        try:
            plan = planned(step, limit, late=False)
        except DoesNotFit:
            continue
        planned_graphs += 1
        mine = step_seconds(step, plan.placement, plan.prefetch, region)
        best = min(
            step_seconds(step, placement, plan.prefetch, region)
            for placement in fullest_placements(step, [f"l{i}" for i in range(len(sizes))], limit)
        )
        assert mine <= WITHIN * best, (sizes, saved, part, region, plan.reasons)
