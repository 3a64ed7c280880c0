from __future__ import annotations

from zcompiler.schedule.memory import memory, peak
from zcompiler.schedule.text import parse_schedule


def held(text: str, tier: str = "host") -> tuple[int, list[int], list[int]]:
    used = memory(parse_schedule(f"zsched 1\n{text}"))
    return used.start[tier], used.during[tier].tolist(), used.after[tier].tolist()


def test_a_buffer_counts_from_the_issue_of_its_read_and_work_only_during_its_run() -> None:
    start, during, after = held("""plan step rank=0 world=1
        tier host compute
        tier nvme
        value x0 input f32 1000B
        value l0 param f32 20B home=nvme
        value x1 act f32 3B
        value y output f32 5B
        region fwd/l0
        nvme_read read l0 nvme->host
        compute run fwd/l0 reads x0 l0 writes x1 work=100B after read(l0)
        compute release l0:full@host
        compute run fwd/l1 reads x1 writes y
        compute release x1:full@host
    """)
    assert start == 0
    assert during == [20, 123, 3, 8, 5]
    assert after == [20, 23, 3, 8, 5]


def test_states_that_rest_on_the_compute_tier_count_from_the_start() -> None:
    start, _, after = held("""plan step rank=1 world=2
        tier host compute
        tier nvme
        value full param f32 100B home=host
        value part param f32 10B shard=5B home=host
        value homeless state f32 1000B
        value away state f32 10000B home=nvme
        region fwd/l0
        comm all_gather part
        compute run fwd/l0 reads full part after all_gather(part)
        compute release part:full@host
    """)
    assert start == 1105
    assert after == [1115, 1115, 1105]


def test_a_gradient_counts_from_the_run_that_makes_it_and_then_stays() -> None:
    start, _, after = held("""plan step rank=0 world=1
        tier host compute
        value x input f32 1B
        value g grad f32 10B
        value h grad f32 100B
        region bwd/l1
        compute run bwd/l1 reads x writes g
        compute run bwd/l0 reads x h writes g h
    """)
    assert start == 100, "a gradient that a run adds to is there already"
    assert after == [110, 110], "adding to a live value takes no memory"


def test_a_gradient_that_no_run_writes_is_there_from_the_start() -> None:
    start, _, _ = held("plan update rank=0 world=1\ntier host compute\nvalue g grad f32 10B home=host\n")
    assert start == 10


def test_middle_tiers_count_and_the_store_does_not() -> None:
    text = """plan step rank=0 world=1
        tier device compute
        tier host
        tier nvme
        value l0 param f32 10B home=nvme
        value l1 param f32 100B home=host
        region fwd/l0
        nvme_read read l0 nvme->host
        h2d reload l0 host->device after read(l0)
        h2d release l0:full@host
        compute run fwd/l0 reads l0 after reload(l0)
        compute release l0:full@device
    """
    assert held(text, "host") == (100, [110, 110, 100, 100, 100], [110, 110, 100, 100, 100])
    assert held(text, "device") == (0, [0, 10, 10, 10, 0], [0, 10, 10, 10, 0])
    assert peak(parse_schedule(f"zsched 1\n{text}")) == {
        "device": (10, "reload(l0)@fwd/l0"),
        "host": (110, "read(l0)@fwd/l0"),
    }


def test_a_reduced_gradient_counts_full_and_shard_until_the_full_form_goes() -> None:
    _, during, after = held("""plan step rank=0 world=2
        tier host compute
        value x input f32 1B
        value g grad f32 10B shard=5B home=host
        region bwd/l0
        compute run bwd/l0 reads x writes g
        comm reduce_scatter g after run(bwd/l0)
        comm release g:full@host
    """)
    assert during == [10, 15, 5] and after == [10, 15, 5]


def test_an_update_works_on_shards() -> None:
    start, during, _ = held("""plan update rank=0 world=2
        tier host compute
        tier nvme
        value l0 param f32 10B shard=5B home=nvme
        value l0.g grad f32 10B shard=5B home=host
        region update/l0
        nvme_read read l0 nvme->host
        update run update/l0 reads l0 l0.g writes l0 after read(l0)
        nvme_write write l0 host->nvme after run(update/l0)
        nvme_write release l0:shard@host
    """)
    assert start == 5 and during == [10, 10, 10, 5]


def test_peak_at_rest_is_at_start() -> None:
    text = "plan p rank=0 world=1\ntier host compute\nvalue l0 param f32 9B\nregion r\ncompute run a reads l0\n"
    assert peak(parse_schedule(f"zsched 1\n{text}")) == {"host": (9, "start")}
