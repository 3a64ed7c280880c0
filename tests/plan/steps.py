"""Steps of layers that no model was captured for: what planner tests plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from zcompiler.options import Options, Place, parse_options
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Placement, Plan
from zcompiler.plan.planner import Question, make_plan
from zcompiler.plan.step import PhaseNames, Step
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value

KIB = 1 << 10
MIB = 1 << 20


def layers(sizes: Sequence[int], limit: int, saved: Sequence[int] | None = None) -> Step:
    """A step of layers with parameters of these bytes, each saving an activation (1 KiB) for backward."""
    tiers = (Tier("host", limit, True), Tier("nvme", None, False))
    values = [Value("x", "input", "f32", KIB, (256,))]
    forward: list[Region] = []
    backward: list[Region] = []
    made: dict[str, str] = {}
    for i, size in enumerate(sizes):
        name, kept = f"l{i}", saved[i] if saved is not None else KIB
        values += [
            Value(name, "param", "f32", size, home="host"),
            Value(f"a{i}", "act", "f32", kept, (kept // 4,)),
            Value(f"{name}:grad", "grad", "f32", size, home="host"),
            Value(f"{name}:state", "state", "f32", 2 * size, home="host"),
        ]
        made[f"{name}:grad"] = name
        reads = (f"a{i - 1}" if i else "x", name)
        forward.append(Region(f"fwd/{name}", (Op("compute", "run", f"fwd/{name}", reads=reads, writes=(f"a{i}",)),)))
        run = Op("compute", "run", f"bwd/{name}", reads=(f"a{i}", name), writes=(f"{name}:grad",))
        backward.insert(0, Region(f"bwd/{name}", (run, Op("compute", "release", f"a{i}", src="host"))))
    schedule = Schedule("graph0", tiers, tuple(values), (*forward, *backward))
    return Step(schedule, PhaseNames(), PhaseNames(buckets=made), {})


def options(limit: int, late: bool = True, **place: str) -> Options:
    return replace(
        parse_options({"memory": limit, "activations": "keep"}, environ={"HOME": "/"}), place=Place(**place), late=late
    )


def planned(step: Step, limit: int, fixed: Placement | None = None, late: bool = True, **place: str) -> Plan:
    names = tuple(v.name for v in step.schedule.values if v.kind == "param")
    known = {name: asdict(homes) for name, homes in (fixed or {}).items()}
    asked = Question(lambda p: step.placed(p).schedule, names, step.gradients, known)
    return make_plan(asked, options(limit, late, **place), "host", "nvme", evaluate)


def evaluate(schedule: Schedule, pipeline: str) -> Schedule:
    return run_pipeline(schedule, parse_pipeline(pipeline), trial=True)
