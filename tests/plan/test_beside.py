"""A late update has the room that it counts on, all through the step."""

from __future__ import annotations

import random

from tests.plan.steps import KIB, evaluate, layers, planned
from zcompiler.errors import DoesNotFit
from zcompiler.plan.assumed import assumed_update
from zcompiler.plan.plan import Plan
from zcompiler.plan.step import Step
from zcompiler.schedule.model import Op, Schedule
from zcompiler.schedule.simulate.program import Program, moved_bytes, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.steps import late, repeated, stored_bytes, subgroup_bytes
from zcompiler.schedule.waits import with_waits


def steps(step: Step, plan: Plan) -> bool:
    """Simulate three steps with a late update, which raises MemoryError where the limit is exceeded; gives back whether
    the limit lets it be late."""
    graph = evaluate(step.placed(plan.placement).schedule, plan.pipeline)
    update = assumed_update(graph, plan.placement, step.gradients, True, evaluate)
    if update.schedule is None or not update.late:
        return False
    after = with_waits(update.schedule)
    parts = program(with_waits(graph), stored_bytes(graph)), program(after, 2 * subgroup_bytes(after))
    simulate(repeated(late(*parts), 3), {})
    return True


def program(schedule: Schedule, lag: int) -> Program:
    def seconds(_: str, op: Op) -> float:
        return 1e-3 if op.kind == "run" else moved_bytes(schedule, op) / 1e9

    return prepare(schedule, seconds, lag)


def test_gradients_that_wait_for_a_late_update_and_its_buffers_fit_together() -> None:
    draw = random.Random(0)
    late_ones = 0
    while late_ones < 25:
        sizes = [64 * KIB * draw.randint(1, 60) for _ in range(draw.randint(2, 6))]
        limit = int(draw.uniform(0.3, 1.0) * 4 * sum(sizes))
        step = layers(sizes, limit, [KIB * draw.randint(1, 900) for _ in sizes])
        try:
            plan = planned(step, limit)
        except DoesNotFit:
            continue
        late_ones += steps(step, plan)
