"""The simulator: the times that the executor itself has on a virtual clock, lanes that share a disk, and causes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_ext.virtual import VirtualRuntime
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Homes
from zcompiler.plan.update import SubGroup, update_schedule
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.schedule.simulate.program import HERE, MOVE, moved_bytes, prepare
from zcompiler.schedule.simulate.simulator import simulate
from zcompiler.schedule.simulate.timeline import Timeline
from zcompiler.schedule.text import parse_schedule

LANES = ("nvme_read", "nvme_write", "h2d", "d2h", "comm")
GATHERS = "gather-params,release-params,reduce-grads"
AHEAD = "keep-last-unit,keep-reused"


@st.composite
def steps(draw: st.DrawFn) -> Schedule:
    """A graph of a few layers, some of them used twice, through the pipeline."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    acts = draw(st.lists(st.integers(1, 9), min_size=len(sizes) + 1, max_size=len(sizes) + 1))
    world, device = draw(st.sampled_from((1, 1, 2))), draw(st.booleans())
    compute = "device" if device else "host"
    values = [Value("x0", "input", "f32", acts[0])]
    values += [Value(f"l{i}", "param", "f32", size, home=compute) for i, size in enumerate(sizes)]
    values += [Value(f"x{i + 1}", "act", "f32", size) for i, size in enumerate(acts[1:])]
    values += [Value(f"l{i}:grad", "grad", "f32", size, home=compute) for i, size in enumerate(sizes)]
    regions = []
    shared = draw(st.booleans())
    for i in range(len(sizes)):
        reads = dict.fromkeys([f"x{i}", f"l{i}", *(["l0"] if shared else [])])
        run = Op("compute", "run", f"fwd/l{i}", reads=tuple(reads), writes=(f"x{i + 1}",), work=draw(st.integers(0, 4)))
        regions.append(Region(run.value, (run,)))
    for i in reversed(range(len(sizes))):
        reads = dict.fromkeys([f"x{i + 1}", f"l{i}", *(["l0"] if shared else [])])
        run = Op(
            "compute", "run", f"bwd/l{i}", reads=tuple(reads), writes=(f"l{i}:grad",), work=draw(st.integers(0, 4))
        )
        regions.append(Region(run.value, (run, Op("compute", "release", f"x{i + 1}", src=compute))))
    tiers = (*([Tier("device", None, True)] if device else []), Tier("host", None, not device), Tier("nvme"))
    bare = Schedule("step", tiers, tuple(values), tuple(regions), 0, world)
    params, grads = draw(st.sampled_from(("nvme", "host"))), draw(st.sampled_from(("nvme", "host")))
    ahead = f"{AHEAD},prefetch-reads{{bytes={draw(st.integers(0, 20))}B}}"
    spec = f"partition-params{{home={params}}},{GATHERS},offload-grads{{home={grads}}},{ahead}"
    return run_pipeline(bare, parse_pipeline(spec))


@st.composite
def updates(draw: st.DrawFn) -> Schedule:
    home = st.sampled_from(("host", "nvme"))
    homes = Homes(draw(home), draw(home), draw(home))
    size = st.integers(1, 9)
    count = draw(st.integers(1, 5))
    groups = [SubGroup(f"l{i}", homes, draw(size), draw(size), draw(size), draw(st.booleans())) for i in range(count)]
    bare = update_schedule(groups, (Tier("host", None, True), Tier("nvme")), draw(st.integers(0, 3)))
    return run_pipeline(bare, parse_pipeline(f"prefetch-reads{{bytes={draw(st.integers(0, 40))}B}}"))


@given(
    schedule=st.one_of(steps(), updates()),
    tight=st.booleans(),
    lag=st.sampled_from((None, 0, 5, 20)),
    rates=st.fixed_dictionaries({lane: st.floats(0.5, 20) for lane in LANES}),
    computing=st.lists(st.floats(0, 8), min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_it_finds_what_the_executor_does_on_a_virtual_clock(
    schedule: Schedule, tight: bool, lag: int | None, rates: dict[str, float], computing: list[float]
) -> None:
    if tight:
        most = peak(schedule)
        tiers = tuple(replace(t, budget=most[t.name][0]) if t.name in most else t for t in schedule.tiers)
        schedule = replace(schedule, tiers=tiers)
    order = {region.name: i for i, region in enumerate(schedule.regions)}

    def compute_seconds(region: str) -> float:
        return computing[order[region] % len(computing)]

    def seconds(region: str, op: Op) -> float:
        return compute_seconds(region) if op.kind == "run" else moved_bytes(schedule, op) / rates[op.lane]

    virtual = VirtualRuntime(schedule, rates, compute_seconds, lag).run()
    program = prepare(schedule, seconds, lag)
    found = simulate(program)
    done = [
        (line.lane, f"{line.op.kind}({line.op.value})", line.region, found.start[i], found.end[i])
        for i, line in enumerate(program.lines)
        if line.op is not None and line.what in (HERE, MOVE)
    ]
    assert done == [(s.lane, s.label, s.region, s.start, s.end) for s in virtual.timeline]
    assert found.seconds == virtual.seconds
    assert found.peak == virtual.peaks
    assert {tier: held.max() for tier in found.peak for _, held in [found.held(tier)]} == found.peak
    exposed = {lane: seconds for lane, seconds in virtual.statistics.exposed.items() if seconds}
    assert found.exposed == pytest.approx(exposed)
    assert found.busy == pytest.approx(
        {lane: sum(s.end - s.start for s in virtual.timeline if s.lane == lane) for lane in found.busy}
    )


SHARED = """zsched 1
plan step rank=0 world=1
tier host compute
tier nvme
value a state f32 4000B home=nvme
value b state f32 4000B home=nvme
value c state f32 2000B home=nvme

region update/a
  nvme_read  read           a nvme->host
  nvme_read  read           b nvme->host for update/b
  update     run            update/a reads a writes a after read(a)
  nvme_write write          a host->nvme after run(update/a)
  nvme_write release        a:full@host

region update/b
  nvme_read  read           c nvme->host for update/c
  update     run            update/b reads b after read(b)@update/a
  update     release        b:full@host
"""


def seconds_of(
    text: str,
    shared: dict[str, float] | None = None,
    budget: int | None = None,
    lag: int | None = None,
    slowing: dict[str, float] | None = None,
) -> Timeline:
    """Simulated at 1000 bytes a second and a second for each run."""
    schedule = parse_schedule(text)
    tiers = tuple(replace(t, budget=budget) if t.compute else t for t in schedule.tiers)
    schedule = replace(schedule, tiers=tiers)
    times = lambda region, op: 1.0 if op.kind == "run" else moved_bytes(schedule, op) / 1000  # noqa: E731
    return simulate(prepare(schedule, times, lag, slowing), shared)


def spans(timeline: Timeline) -> dict[str, tuple[float, float]]:
    lines = timeline.program.lines
    return {
        timeline.name(i): (timeline.start[i], timeline.end[i])
        for i, line in enumerate(lines)
        if line.op is not None and line.what in (HERE, MOVE)
    }


def test_lanes_that_do_not_share_keep_their_speed() -> None:
    assert spans(seconds_of(SHARED)) == {
        "read(a)@update/a": (0, 4),
        "read(b)@update/a": (4, 8),
        "run(update/a)@update/a": (4, 5),
        "write(a)@update/a": (5, 9),
        "read(c)@update/b": (8, 10),
        "run(update/b)@update/b": (8, 9),
    }


def test_lanes_that_share_slow_each_other_only_while_both_work() -> None:
    # Of b 3000 bytes are left when the write begins, which take 6 s at half speed; c comes right behind. After 8 s at
    # half speed the write is done, and c has 1000 bytes left.
    assert spans(seconds_of(SHARED, {"nvme_read": 0.5, "nvme_write": 0.5})) == {
        "read(a)@update/a": (0, 4),
        "read(b)@update/a": (4, 11),
        "run(update/a)@update/a": (4, 5),
        "write(a)@update/a": (5, 13),
        "read(c)@update/b": (11, 14),
        "run(update/b)@update/b": (11, 12),
    }


def test_transfers_that_slow_what_is_computed_cost_nothing_where_it_waits_for_them() -> None:
    assert spans(seconds_of(SHARED, slowing={"nvme_read": 0.0004})) == spans(seconds_of(SHARED))


def test_transfers_that_slow_what_is_computed_make_it_so_much_later() -> None:
    # The reads of a and b take 6.4 s from the computing thread before it updates a, and that of c 1.6 s more.
    found = spans(seconds_of(SHARED, slowing={"nvme_read": 0.0008}))
    assert {name: [round(at, 6) for at in span] for name, span in found.items()} == {
        "read(a)@update/a": [0, 4],
        "read(b)@update/a": [4, 8],
        "run(update/a)@update/a": [6.4, 7.4],
        "write(a)@update/a": [7.4, 11.4],
        "read(c)@update/b": [8, 10],
        "run(update/b)@update/b": [9, 10],
    }


def test_a_transfer_takes_no_more_from_what_is_computed_than_it_takes_itself() -> None:
    found = {seconds_of(SHARED, slowing=dict.fromkeys(LANES, much)).seconds for much in (1e-3, 1.0, 1e9)}
    assert len(found) == 1


@given(
    schedule=st.one_of(steps(), updates()),
    parts=st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)),
    lag=st.sampled_from((None, 5)),
)
@settings(max_examples=50, deadline=None)
def test_sharing_costs_no_more_than_the_slowest_part_and_never_gains(
    schedule: Schedule, parts: tuple[float, float], lag: int | None
) -> None:
    program = prepare(schedule, lambda region, op: 1.0 if op.kind == "run" else moved_bytes(schedule, op), lag)
    alone = simulate(program).seconds
    slow = prepare(
        schedule, lambda region, op: 1.0 if op.kind == "run" else moved_bytes(schedule, op) / min(parts), lag
    )
    shared = simulate(program, dict(zip(LANES, parts, strict=False))).seconds
    assert alone - 1e-9 <= shared <= simulate(slow).seconds + 1e-9


def test_an_allocation_waits_for_what_is_still_being_written_and_the_wait_has_a_cause() -> None:
    found = seconds_of(SHARED, budget=8000)
    assert [(found.name(w.waiter), found.name(w.cause), w.seconds, w.why) for w in found.waits] == [
        ("run(update/a)@update/a", "read(a)@update/a", 4, "use"),
        ("read(c)@update/b", "write(a)@update/a", 4, "room"),
        ("step", "read(c)@update/b", 1, "end"),
    ]
    assert found.peak == {"host": 8000}
    assert found.exposed == {"nvme_read": 4, "nvme_write": 4}
    assert found.drained == {"nvme_read": 1}
    assert found.causes()[0][:2] == ("nvme_read", "read(a)@update/a")


def test_what_may_trail_behind_is_bounded_by_the_lag() -> None:
    waits = [w for w in seconds_of(SHARED, lag=3999).waits if w.why == "lag"]
    assert [w.seconds for w in waits] == [4]
    assert [w for w in seconds_of(SHARED, lag=4000).waits if w.why == "lag"] == []


def test_memory_is_held_until_the_transfer_that_uses_it_is_done() -> None:
    times, held = seconds_of(SHARED).held("host")
    assert list(zip(times.tolist(), held.tolist(), strict=True)) == [
        (0, 0),
        (0, 4000),
        (0, 8000),
        (5, 10000),
        (9, 6000),
        (9, 2000),
    ]


def test_what_can_never_fit_says_where_and_how_much() -> None:
    with pytest.raises(MemoryError, match=r"read\(b\)@update/a allocates 4000B in host, where 4000B of 7999B are held"):
        seconds_of(SHARED, budget=7999)


def test_a_wait_for_nothing_is_refused() -> None:
    with pytest.raises(LookupError, match=r"run\(update/b\) waits for read\(b\)@update/x, which is no earlier op"):
        seconds_of(SHARED.replace("after read(b)@update/a", "after read(b)@update/x"))
