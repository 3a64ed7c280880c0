from __future__ import annotations

from dataclasses import replace

import pytest

from zcompiler.schedule.model import Op, Region
from zcompiler.schedule.render import render_problems
from zcompiler.schedule.text import parse_schedule
from zcompiler.schedule.verify import RULES, comm_difference, same_comm, verify

HEAD = """zsched 1
plan step rank=0 world=1
tier host 8KiB compute
tier nvme
value x0 input f32 1KiB
value l0 param f32 2KiB home=nvme
value x1 act f32 1KiB
value y output f32 1KiB
value l0.g grad f32 1KiB home=nvme
"""
FORWARD = """region fwd/l0
  nvme_read read l0 nvme->host
  compute run fwd/l0 reads x0 l0 writes x1 after read(l0)
  compute release l0:full@host
  compute run fwd/l1 reads x1 writes y
  compute release x1:full@host
"""
UPDATE = """region update/l0
  nvme_read read l0 nvme->host
  update run update/l0 reads l0 writes l0 after read(l0)
  nvme_write write l0 host->nvme after run(update/l0)
  nvme_write release l0:full@host
"""
WHOLE = HEAD + FORWARD
UPDATED = HEAD + UPDATE
BACK = "  nvme_read read l0 nvme->host after write(l0)\n  nvme_read release l0:full@host\n"
# Back before the write is done: only the wait is missing.
HASTY = "  nvme_read read l0 nvme->host\n  nvme_read release l0:full@host\n"


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


AT_REST = """zsched 1
plan p rank=0 world=1
tier host {budget} compute
value l0 param f32 1.5KiB
region r
  compute run a reads l0
"""

BREAKS = {
    "well-formed": (changed(WHOLE, "nvme_read read", "h2d read"), "read l0: is nvme->host on lane h2d"),
    "names-resolve": (changed(WHOLE, "nvme->host", "nvme->host for fwd/l9"), "read l0: no region fwd/l9 here"),
    "waits-earlier": (
        changed(WHOLE, "after read(l0)", "after read(l0) read(l0)@fwd/l1"),
        "run fwd/l0 waits for read(l0)@fwd/l1, which is no earlier op",
    ),
    "waits-canonical": (changed(WHOLE, " after read(l0)", ""), "run fwd/l0 must wait for read(l0)"),
    "operand-live": (
        changed(WHOLE, "reads x1 writes y", "reads x1 l0.g writes y"),
        "uses l0.g:full@host, which is not",
    ),
    "use-after-release": (
        changed(WHOLE, "run fwd/l1 reads x1", "run fwd/l1 reads x1 l0"),
        "run fwd/l1 uses l0:full@host, which was released before",
    ),
    "release-live": (WHOLE + "  compute release x1:full@host\n", "release x1:full@host frees nothing"),
    "release-last": (
        changed(WHOLE, "compute release l0", "nvme_read release l0"),
        "release l0 must wait for run(fwd/l0), which uses what it frees",
    ),
    "made-once": (
        changed(WHOLE, "read l0 nvme->host\n", "read l0 nvme->host\n  nvme_read read l0 nvme->host\n"),
        "read l0: l0:full@host is live already; release it first",
    ),
    "read-after-write": (UPDATED + HASTY, "read l0 must wait for write(l0), the last write of its value"),
    "lost-write": (
        changed(
            changed(UPDATED, "  nvme_write write l0 host->nvme after run(update/l0)\n", ""),
            "nvme_write rel",
            "update rel",
        ),
        "release l0:full@host loses what run(update/l0)@update/l0 wrote",
    ),
    "leak": (
        changed(WHOLE, "  compute release x1:full@host\n", ""),
        "x1:full@host (1KiB), made by run(fwd/l0)@fwd/l0, is never released",
    ),
    "budget": (
        changed(WHOLE, "8KiB compute", "2.5KiB compute"),
        "run fwd/l0 raises host to 3KiB; the budget is 2.5KiB (512B over). Raise the memory of host to 3KiB.",
    ),
    "comm-world": (WHOLE + "  comm all_gather l0\n", "all_gather l0: a world of 1 has nobody to talk to"),
}


@pytest.mark.parametrize("text", [WHOLE, UPDATED, UPDATED + BACK], ids=["forward", "update", "read back"])
def test_whole_schedules_have_no_problems(text: str) -> None:
    assert verify(parse_schedule(text)) == []


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_has_a_text_that_breaks_exactly_it(rule: str) -> None:
    text, message = BREAKS[rule]
    problems = verify(parse_schedule(text))
    assert [p.rule for p in problems] == [rule]
    assert message in problems[0].message


def test_problems_point_at_their_line() -> None:
    schedule = parse_schedule(BREAKS["use-after-release"][0])
    (problem,) = verify(schedule)
    assert (problem.region, problem.op) == ("fwd/l0", 3)
    shown = render_problems(schedule, [problem], around=2).splitlines()
    assert shown == [
        "[use-after-release] fwd/l0: run fwd/l1 uses l0:full@host, which was released before",
        "     region fwd/l0",
        "       ...",
        "       compute    run            fwd/l0 reads x0 l0 writes x1 after read(l0)",
        "       compute    release        l0:full@host",
        "-->    compute    run            fwd/l1 reads x1 l0 writes y",
        "       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ use-after-release",
        "       compute    release        x1:full@host",
        "       live       host=1KiB",
    ]


def test_a_read_of_what_has_not_been_written_back_is_stale() -> None:
    text = """zsched 1
plan update rank=0 world=2
tier host compute
tier nvme
value l0 param f32 2KiB shard=1KiB home=nvme
region update/l0
  nvme_read read l0 nvme->host
  update run update/l0 reads l0 writes l0 after read(l0)
  nvme_read read l0 nvme->host
"""
    stale = [p.message for p in verify(parse_schedule(text)) if p.rule == "read-after-write"]
    assert stale == ["read l0: l0:shard@host was written and is not yet back at home"]


def test_a_write_waits_for_those_who_read_the_old_bytes() -> None:
    text = """zsched 1
plan step rank=0 world=1
tier device compute
tier host
tier nvme
value g grad f32 1KiB home=host
value x input f32 1KiB
region bwd/a
  compute run bwd/a reads x writes g
  d2h offload g device->host after run(bwd/a)
  h2d reload g host->device after offload(g)
"""
    rules = [p.rule for p in verify(parse_schedule(text))]
    assert rules == ["made-once", "leak"], "the reload makes a second copy on the device"
    text += """  h2d release g:full@device
  compute run bwd/b reads x writes g
  d2h offload g device->host after {waits}
  d2h release g:full@device
"""
    text = text.replace("after run(bwd/a)\n", "after run(bwd/a)\n  d2h release g:full@device\n")
    assert verify(parse_schedule(text.format(waits="reload(g) run(bwd/b)"))) == []
    (problem,) = verify(parse_schedule(text.format(waits="run(bwd/b)")))
    assert (problem.rule, problem.message) == ("waits-canonical", "offload g must wait for reload(g)")


def test_what_rests_is_never_released() -> None:
    text = AT_REST.format(budget="2KiB") + "  compute release l0:full@host\n"
    (problem,) = verify(parse_schedule(text))
    assert problem.rule == "release-live" and "frees the only copy" in problem.message


def test_what_rests_over_the_budget_is_said_once() -> None:
    text = AT_REST.format(budget="1KiB")
    (problem,) = verify(parse_schedule(text))
    assert problem.message == (
        "what rests in host takes 1.5KiB; the budget is 1KiB (512B over). "
        "Give values another home or raise the memory of host to 1.5KiB."
    )


def test_a_prefetch_over_the_budget_says_what_to_lower() -> None:
    text = changed(WHOLE, "8KiB compute", "1KiB compute").replace("nvme->host", "nvme->host for fwd/l0")
    first = verify(parse_schedule(text))[0]
    assert "Lower the bytes that prefetch-reads may be ahead or raise the memory of host to 2KiB." in first.message


def test_schedules_built_by_hand_are_judged_too() -> None:
    schedule = parse_schedule(WHOLE)
    no_tier = replace(schedule, tiers=())
    assert "exactly one tier must be marked compute" in [p.message for p in verify(no_tier)]
    twice = replace(schedule, values=(*schedule.values, schedule.values[0]))
    assert [p.message for p in verify(twice)] == ["value x0 is declared twice"]
    kinds = replace(schedule, values=(*schedule.values, replace(schedule.value("l0"), kind="act", home=None)))
    assert "value l0 is declared twice" in [p.message for p in verify(kinds)]
    wrong_form = replace(schedule, regions=(Region("r", (Op("nvme_read", "read", "l0", "full", "nvme", "host"),)),))
    assert "read l0: form is full; it must be shard" in [p.message for p in verify(wrong_form)]
    small = replace(schedule, values=(replace(schedule.values[1], shard=1),), regions=())
    assert [p.message for p in verify(small)] == ["l0 is 2KiB, but 1 shards of 1B hold less"]
    stray = replace(schedule, regions=(Region("r", (Op("compute", "run", "r", reads=("nobody",)),)),))
    assert [p.message for p in verify(stray)] == ["run r: no value nobody here"]


def test_collectives_are_compared_over_ranks() -> None:
    text = """zsched 1
plan step rank=0 world=2
tier host compute
value a param f32 1KiB shard=512B
value b param f32 1KiB shard=512B
region fwd/l0
  comm all_gather a
  comm all_gather b
"""
    first = parse_schedule(text)
    other = parse_schedule(text.replace("rank=0", "rank=1"))
    assert same_comm(first, other) and comm_difference(first, other) is None
    swapped = replace(other, regions=(Region("fwd/l0", other.regions[0].ops[::-1]),))
    assert not same_comm(first, swapped)
    assert comm_difference(first, swapped) == (
        "collective 0 is all_gather a (1KiB) in fwd/l0 on rank 0 and all_gather b (1KiB) in fwd/l0 on rank 1"
    )
    fewer = replace(other, regions=(Region("fwd/l0", other.regions[0].ops[:1]),))
    assert comm_difference(first, fewer) == "rank 0 issues 2 collectives, rank 1 1"
