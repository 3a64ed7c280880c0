"""Whatever the sizes and budgets, prefetch-reads only moves lines, and stays inside what it was given."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.passes.prefetch_reads import PrefetchReads
from zcompiler.schedule.memory import memory, peak
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value

GATHER = "partition-params{home=nvme},gather-params,release-params"


@st.composite
def gathered(draw: st.DrawFn) -> Schedule:
    """A forward over units of random sizes, some used twice, gathered and released but not prefetched."""
    three, world = draw(st.booleans()), draw(st.sampled_from([1, 2]))
    tiers = (
        (Tier("device", None, True), Tier("host"), Tier("nvme")) if three else (Tier("host", None, True), Tier("nvme"))
    )
    sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    units = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=2, max_size=8))
    values = [Value(f"p{i}", "param", "f32", 2 * size) for i, size in enumerate(sizes)]
    values.append(Value("x0", "input", "f32", 4))
    regions = []
    for i, unit in enumerate(units):
        values.append(Value(f"x{i + 1}", "output", "f32", 1))
        run = Op("compute", "run", f"fwd/{i}", reads=(f"x{i}", f"p{unit}"), writes=(f"x{i + 1}",))
        regions.append(Region(f"fwd/{i}", (replace(run, work=draw(st.integers(0, 9))),)))
    bare = Schedule("step", tiers, tuple(values), tuple(regions), 0, world)
    return run_pipeline(bare, parse_pipeline(GATHER))


@settings(max_examples=80)
@given(gathered(), st.integers(0, 40), st.integers(0, 20), st.integers(0, 20))
def test_prefetch_holds(schedule: Schedule, most: int, spare: int, host_spare: int) -> None:
    least = peak(schedule)
    budgets = {name: held + (spare if i == 0 else host_spare) for i, (name, (held, _)) in enumerate(least.items())}
    schedule = replace(schedule, tiers=tuple(replace(t, budget=budgets.get(t.name)) for t in schedule.tiers))
    moved = run_pipeline(schedule, [PrefetchReads(most)])  # verified: budgets, order, waits, liveness
    assert _lines(moved) == _lines(schedule)
    assert [_slow(op) for _, op in moved.ops() if _slow(op)] == [_slow(op) for _, op in schedule.ops() if _slow(op)]
    assert _most_ahead(moved) <= most
    if most == 0:
        assert moved == schedule
    for tier, held in memory(moved).after.items():
        assert held[-1] == memory(schedule).after[tier][-1]


def _lines(schedule: Schedule) -> Counter[Op]:
    return Counter(replace(op, after=(), for_region="") for _, op in schedule.ops())


def _slow(op: Op) -> str:
    return op.value if op.kind == "read" else ""


def _most_ahead(schedule: Schedule) -> int:
    """The most bytes that were read for later regions when a region begins to run."""
    order = {region.name: i for i, region in enumerate(schedule.regions)}
    reads = [
        (order[r.name], order[op.for_region], op) for r, op in schedule.ops() if op.kind == "read" and op.for_region
    ]
    sizes = {v.name: v.nbytes if schedule.world == 1 or v.shard is None else v.shard for v in schedule.values}
    return max((sum(sizes[op.value] for at, until, op in reads if at <= i < until) for i in order.values()), default=0)
