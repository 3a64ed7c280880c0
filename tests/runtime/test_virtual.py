from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_ext.virtual import VirtualRuntime
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.schedule.text import parse_schedule

SECOND = 4096.0  # bytes a second, so that a page takes one

ON_DEMAND = """zsched 1
plan step rank=0 world=1
tier host compute
tier nvme
value x0 input f32 4KiB
value l0 param f32 4KiB home=nvme
value x1 act f32 4KiB
value l1 param f32 4KiB home=nvme
value x2 output f32 4KiB

region fwd/l0
  nvme_read  read           l0 nvme->host
  compute    run            fwd/l0 reads x0 l0 writes x1 after read(l0)
  compute    release        l0:full@host after run(fwd/l0)
  live       host=4KiB

region fwd/l1
  nvme_read  read           l1 nvme->host
  compute    run            fwd/l1 reads x1 l1 writes x2 after read(l1)
  compute    release        l1:full@host after run(fwd/l1)
  compute    release        x1:full@host after run(fwd/l1)
  live       host=4KiB

peak host 12KiB at run(fwd/l1)@fwd/l1
"""

PREFETCHED = """zsched 1
plan step rank=0 world=1
tier host compute
tier nvme
value x0 input f32 4KiB
value l0 param f32 4KiB home=nvme
value x1 act f32 4KiB
value l1 param f32 4KiB home=nvme
value x2 output f32 4KiB

region fwd/l0
  nvme_read  read           l0 nvme->host
  nvme_read  read           l1 nvme->host for fwd/l1
  compute    run            fwd/l0 reads x0 l0 writes x1 after read(l0)
  compute    release        l0:full@host after run(fwd/l0)
  live       host=8KiB

region fwd/l1
  compute    run            fwd/l1 reads x1 l1 writes x2 after read(l1)@fwd/l0
  compute    release        l1:full@host after run(fwd/l1)
  compute    release        x1:full@host after run(fwd/l1)
  live       host=4KiB

peak host 12KiB at run(fwd/l0)@fwd/l0
"""

TWO_RANKS = """zsched 1
plan step rank=0 world=2
tier device 32KiB compute
tier host 16KiB
tier nvme
value x0 input f32 4KiB
value l0 param f32 8KiB shard=4KiB home=nvme
value x1 act f32 4KiB
value l0.g grad f32 8KiB shard=4KiB home=nvme

region fwd/l0
  nvme_read  read           l0 nvme->host
  h2d        reload         l0 host->device after read(l0)
  h2d        release        l0:shard@host after reload(l0)
  comm       all_gather     l0 after reload(l0)
  comm       release        l0:shard@device after all_gather(l0)
  compute    run            fwd/l0 reads x0 l0 writes x1 work=4KiB after all_gather(l0)
  live       device=12KiB host=0B

region bwd/l0
  compute    run            bwd/l0 reads x1 l0 writes l0.g
  compute    release        x1:full@device after run(bwd/l0)
  compute    release        l0:full@device after run(bwd/l0)
  comm       reduce_scatter l0.g after run(bwd/l0)
  comm       release        l0.g:full@device after reduce_scatter(l0.g)
  d2h        offload        l0.g device->host after reduce_scatter(l0.g)
  d2h        release        l0.g:shard@device after offload(l0.g)
  nvme_write write          l0.g host->nvme after offload(l0.g)
  nvme_write release        l0.g:shard@host after write(l0.g)
  live       device=0B host=0B

peak device 20KiB at run(bwd/l0)@bwd/l0
peak host 4KiB at read(l0)@fwd/l0
"""

LANES = ("nvme_read", "nvme_write", "h2d", "d2h", "comm")


def machine(schedule: Schedule, **rates: float) -> VirtualRuntime:
    return VirtualRuntime(schedule, {lane: rates.get(lane, SECOND) for lane in LANES}, lambda region: 1.0)


def test_a_read_on_demand_is_exposed_whole() -> None:
    outcome = machine(parse_schedule(ON_DEMAND)).run()
    assert outcome.seconds == 4
    assert outcome.statistics.exposed == {"nvme_read": 2}
    assert outcome.statistics.hidden("nvme_read") == 0


def test_a_prefetched_read_hides_behind_compute() -> None:
    outcome = machine(parse_schedule(PREFETCHED)).run()
    assert outcome.seconds == 3
    assert outcome.statistics.exposed == {"nvme_read": 1}
    assert outcome.statistics.hidden("nvme_read") == 1


def test_the_timeline_says_which_lane_did_what_for_which_region_and_when() -> None:
    spans = machine(parse_schedule(PREFETCHED)).run().timeline
    assert [(s.lane, s.label, s.region, s.start, s.end) for s in spans] == [
        ("nvme_read", "read(l0)", "fwd/l0", 0, 1),
        ("nvme_read", "read(l1)", "fwd/l0", 1, 2),
        ("compute", "run(fwd/l0)", "fwd/l0", 1, 2),
        ("compute", "run(fwd/l1)", "fwd/l1", 2, 3),
    ]


@pytest.mark.parametrize("text", [ON_DEMAND, PREFETCHED, TWO_RANKS], ids=["on-demand", "prefetched", "two-ranks"])
def test_arena_peaks_are_those_of_the_text(text: str) -> None:
    schedule = parse_schedule(text)
    virtual = machine(schedule)
    assert virtual.run().peaks == {tier: most for tier, (most, _) in peak(schedule).items()}
    assert all(arena.in_use == 0 for arena in virtual.arenas.values())


def test_two_ranks_use_every_lane_in_the_order_of_the_data() -> None:
    outcome = machine(parse_schedule(TWO_RANKS), comm=2 * SECOND).run()
    assert [(s.lane, s.end) for s in outcome.timeline] == [
        ("nvme_read", 1),
        ("h2d", 2),
        ("comm", 2.5),
        ("compute", 3.5),
        ("compute", 4.5),
        ("comm", 5),
        ("d2h", 6),
        ("nvme_write", 7),
    ]
    assert outcome.seconds == 7
    # One waits for the gather only, which is the last of a chain.
    assert outcome.statistics.exposed == {"comm": 2.5}
    assert outcome.statistics.bytes_read == {("nvme", "param"): 4096}
    assert outcome.statistics.bytes_written == {("nvme", "grad"): 4096}


def test_an_allocation_waits_for_a_buffer_that_is_still_being_written() -> None:
    text = """zsched 1
plan update rank=0 world=1
tier host 4KiB compute
tier nvme
value a state f32 4KiB home=nvme
value b state f32 4KiB home=nvme

region update/a
  nvme_read  read           a nvme->host
  update     run            update/a reads a writes a after read(a)
  nvme_write write          a host->nvme after run(update/a)
  nvme_write release        a:full@host after write(a)
  live       host=0B

region update/b
  nvme_read  read           b nvme->host
  update     run            update/b reads b writes b after read(b)
  nvme_write write          b host->nvme after run(update/b)
  nvme_write release        b:full@host after write(b)
  live       host=0B

peak host 4KiB at read(a)@update/a
"""
    outcome = machine(parse_schedule(text)).run()
    assert outcome.peaks == {"host": 4096}
    assert outcome.seconds == 6
    assert outcome.statistics.exposed == {"nvme_read": 2, "nvme_write": 1}


def test_what_does_not_fit_is_refused_and_everything_freed() -> None:
    schedule = parse_schedule(PREFETCHED.replace("tier host compute", "tier host 11KiB compute"))
    virtual = machine(schedule)
    with pytest.raises(MemoryError, match="arena host: 4096 B wanted, 8192 B of 11264 B are in use"):
        virtual.run()
    assert virtual.arenas["host"].in_use == 0


def test_a_lane_needs_a_rate() -> None:
    with pytest.raises(LookupError, match="this machine has no lane nvme_read, only h2d"):
        VirtualRuntime(parse_schedule(PREFETCHED), {"h2d": 1.0}, lambda region: 1.0).run()


def updates(sizes: list[int], distance: int, budget: int | None) -> Schedule:
    """Each unit is read `distance` units ahead, updated in place and written back."""
    values = tuple(Value(f"u{i}", "state", "f32", size, home="nvme") for i, size in enumerate(sizes))
    regions = []
    issued = itertools.count()
    ahead: dict[int, str] = {}
    for i in range(len(sizes)):
        ops = []
        while len(ahead) < min(i + 1 + distance, len(sizes)):
            j = next(issued)
            ahead[j] = f"read(u{j})@update/u{i}"
            ops.append(Op("nvme_read", "read", f"u{j}", "shard", "nvme", "host"))
        name, value = f"update/u{i}", f"u{i}"
        ops.append(Op("update", "run", name, reads=(value,), writes=(value,), after=(ahead[i],)))
        ops.append(Op("nvme_write", "write", value, "shard", "host", "nvme", after=(f"run({name})",)))
        ops.append(Op("nvme_write", "release", value, "full", "host", after=(f"write({value})",)))
        regions.append(Region(name, tuple(ops)))
    return Schedule("update", (Tier("host", budget, compute=True), Tier("nvme")), values, tuple(regions))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 3), st.floats(0.5, 8), st.floats(0.5, 8))
def test_at_a_budget_of_its_peak_a_schedule_always_ends_and_never_exceeds_it(
    sizes: list[int], distance: int, read: float, write: float
) -> None:
    unlimited = updates(sizes, distance, None)
    most = peak(unlimited)["host"][0]
    rates = {"nvme_read": read, "nvme_write": write}
    tight = VirtualRuntime(updates(sizes, distance, most), rates, lambda region: 1.0)
    outcome = tight.run()
    assert outcome.peaks["host"] == most
    assert tight.arenas["host"].in_use == 0
    total = sum(sizes)
    assert outcome.statistics.bytes_read == {("nvme", "state"): total}
    assert outcome.statistics.bytes_written == {("nvme", "state"): total}
    assert max(len(sizes), total / read, total / write) <= outcome.seconds + 1e-9
    assert outcome.seconds <= len(sizes) + total / read + total / write + 1e-9
    free = VirtualRuntime(unlimited, rates, lambda region: 1.0).run()
    assert free.seconds <= outcome.seconds + 1e-9
