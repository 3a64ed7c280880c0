"""What differs between two schedules, and what does not: names, and the order of the header."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.compare.texts import GOLDENS, ONE_RANK, golden, in_words
from zcompiler.cli.opt import read_golden
from zcompiler.compare.difference import Change, compare
from zcompiler.schedule.model import Op, Region, Schedule, Value
from zcompiler.schedule.text import parse_schedule, print_schedule

STEP = golden(ONE_RANK)
TEXT = print_schedule(STEP)


def changed(old: Schedule, new: Schedule) -> list[tuple[str, ...]]:
    return [(c.how, c.name, c.before, c.after) for c in compare(old, new).changes]


@pytest.mark.parametrize("path", sorted(GOLDENS.glob("*.zsched")), ids=lambda p: p.stem)
def test_a_schedule_is_equal_to_itself_in_other_words(path: Path) -> None:
    schedule = golden(path)
    names = {v.name: f"v{i}" for i, v in enumerate(schedule.values)}
    names |= {r.name: f"{r.phase}/r{i}" for i, r in enumerate(schedule.regions)}
    other = in_words(schedule, names)
    other = replace(other, values=other.values[::-1], tiers=other.tiers[::-1], name="another")
    assert other != schedule
    match = compare(schedule, other)
    assert match.changes == () and match.renamed == names
    assert compare(other, schedule).changes == ()


def test_two_names_that_were_exchanged_are_no_difference() -> None:
    assert changed(STEP, in_words(STEP, {"l0": "l1", "l1": "l0", "x1": "x2", "x2": "x1"})) == []


def test_the_order_in_which_a_run_names_what_it_reads_is_no_difference() -> None:
    assert changed(STEP, parse_schedule(TEXT.replace("reads x1 l1", "reads l1 x1"))) == []


def test_a_prefetch_is_an_op_that_moved() -> None:
    found = changed(golden(ONE_RANK, without="prefetch-reads"), STEP)
    assert {how for how, *_ in found} == {"moved"}
    assert ("moved", "nvme_read read l1", "fwd/l1", "fwd/l0") in found


def test_keeping_a_unit_removes_its_second_read_and_first_release() -> None:
    found = changed(golden(ONE_RANK, without="keep-last-unit"), STEP)
    assert ("removed", "nvme_read read l2", "bwd/l2", "") in found
    assert ("removed", "compute release l2:full@host", "fwd/l2", "") in found
    assert [how for how, *_ in found].count("removed") == 2


def test_a_change_is_found_beneath_other_names() -> None:
    other = in_words(STEP, {"x1": "addmm", "x2": "addmm_1", "d2": "mm", "d1": "mm_2", "fwd/l1": "fwd/layer1"})
    less = tuple(replace(r, ops=r.ops[:-1]) if r.name == "bwd/l0" else r for r in other.regions)
    gone = ("removed", "nvme_write release l0.g:full@host", "bwd/l0", "")
    assert changed(STEP, replace(other, regions=less)) == [gone]


def test_a_region_that_is_new_shows_as_that_though_the_names_behind_it_are_numbered_on() -> None:
    names = {"x1": "x2", "x2": "x3"}
    other = in_words(STEP, names)
    new = Value("x1", "act", "f32", 1024, (8, 32))
    run = Op("compute", "run", "fwd/norm", reads=("x0", "l0"), writes=("x1",), work=512)
    free = Op("compute", "release", "x1", src="host")
    regions = (other.regions[0], Region("fwd/norm", (run, free)), *other.regions[1:])
    match = compare(STEP, replace(other, values=(*other.values, new), regions=regions))
    assert {(c.what, c.how, c.name) for c in match.changes} == {
        ("value", "added", "x1"),
        ("region", "added", "fwd/norm"),
        ("op", "added", "compute run fwd/norm"),
        ("op", "added", "compute release x1:full@host"),
    }
    assert match.renamed == names


def test_homes_sizes_budgets_and_work_are_differences() -> None:
    text = "\n".join(s for s in TEXT.splitlines() if not s.startswith(("  live", "peak")))
    text = text.replace("value l0.g grad f32 [32,16] 2KiB home=nvme", "value l0.g grad f32 [32,16] 2KiB home=host")
    text = text.replace("value x1 act f32 [8,32] 1KiB", "value x1 act f32 [16,32] 2KiB")
    text = text.replace("writes x1 work=512B", "writes x1 work=1KiB").replace("tier host 16KiB", "tier host 17KiB")
    assert compare(STEP, parse_schedule(text)).changes == (
        Change("tier", "changed", "host", "16KiB", "17KiB"),
        Change("value", "changed", "l0.g", "home=nvme", "home=host"),
        Change("value", "changed", "x1", "[8,32] 1KiB", "[16,32] 2KiB"),
        Change("op", "changed", "compute run fwd/l0", "work=512B", "work=1KiB"),
    )


def test_two_lines_of_a_region_that_change_places_are_one_move() -> None:
    text = "\n".join(s for s in TEXT.splitlines() if not s.startswith(("  live", "peak")))
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "release        x1:full@host" in line)
    lines[at - 1], lines[at] = lines[at], lines[at - 1]
    ((how, name, before, after),) = changed(STEP, parse_schedule("\n".join(lines)))
    assert how == "moved" and name.startswith("compute release") and before.startswith("bwd/l1 behind ") != after


def test_a_wait_that_is_missing_is_a_difference() -> None:
    ((how, name, before, after),) = changed(STEP, parse_schedule(TEXT.replace(" after read(l0)\n", "\n", 1)))
    assert (how, name, before, after) == (
        "changed",
        "compute run fwd/l0",
        "after what-it-uses",
        "after nothing",
    )


PATHS = sorted(GOLDENS.parent.rglob("*.zsched"))
ALL = [parse_schedule(read_golden(path.read_text()).expected or "") for path in PATHS]


def test_every_golden_of_a_pass_is_equal_to_itself_in_other_words() -> None:
    for schedule in ALL:
        names = {v.name: f"v{i}" for i, v in enumerate(schedule.values)}
        names |= {r.name: f"{r.phase}/r{i}" for i, r in enumerate(schedule.regions)}
        match = compare(schedule, in_words(schedule, names))
        assert (match.changes, match.renamed) == ((), names)


def test_no_op_can_go_and_no_two_neighbours_can_change_places_unseen() -> None:
    seen = 0
    for schedule in ALL[::4]:
        for at, region in enumerate(schedule.regions):
            for i in range(len(region.ops)):
                ops = region.ops
                others = [ops[:i] + ops[i + 1 :]]
                others += [ops[:i] + (ops[i + 1], ops[i]) + ops[i + 2 :]] if i + 1 < len(ops) else []
                for made in others:
                    other = list(schedule.regions)
                    other[at] = replace(region, ops=made)
                    assert compare(schedule, replace(schedule, regions=tuple(other))).changes, (region.name, i)
                    seen += 1
    assert seen > 200
