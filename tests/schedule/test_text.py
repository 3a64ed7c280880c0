from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zcompiler.schedule.model import KINDS, Op, Region, Schedule, Tier, Value
from zcompiler.schedule.sizes import format_bytes, parse_bytes
from zcompiler.schedule.text import ScheduleSyntaxError, parse_schedule, print_schedule
from zcompiler.schedule.words import FORM_OF, FORMS, LANES, OP_KINDS

CANONICAL = """zsched 1
plan step rank=1 world=2
tier device 4KiB compute
tier host 2.25KiB
tier nvme
value l0.w param bf16 [32,16] 1KiB shard=512B home=nvme
value x0 input f32 [] 4B
value y output bf16 513B

region fwd/l0
  nvme_read  read           l0.w nvme->host
  h2d        reload         l0.w host->device after read(l0.w)
  h2d        release        l0.w:shard@host
  comm       all_gather     l0.w after reload(l0.w)
  comm       release        l0.w:shard@device
  live       device=1KiB host=0B

region fwd/l1
  compute    run            fwd/l1 reads x0 l0.w writes y work=3KiB for fwd/l1 after all_gather(l0.w)@fwd/l0
  compute    release        l0.w:full@device
  live       device=513B host=0B

peak device 4609B at run(fwd/l1)@fwd/l1
peak host 512B at read(l0.w)@fwd/l0
"""

NAME = st.text("az09._/:[]-", min_size=1, max_size=4)
SIZE = st.one_of(st.integers(0, 5000), st.integers(0, 5000).map(lambda n: n << 18))
EVENT = st.builds(
    lambda kind, value, region: f"{kind}({value})" + (f"@{region}" if region else ""),
    st.sampled_from(OP_KINDS),
    NAME,
    st.one_of(st.just(""), NAME),
)


@st.composite
def an_op(draw: st.DrawFn, values: list[str], tiers: list[str]) -> Op:
    value, tier = st.sampled_from(values), st.sampled_from(tiers)
    kind = draw(st.sampled_from(OP_KINDS))
    form = FORM_OF.get(kind) or draw(st.sampled_from(FORMS))
    src = draw(tier) if kind in ("release", "read", "write", "reload", "offload") else ""
    dst = draw(tier) if src and kind != "release" else ""
    some = st.lists(value, max_size=3).map(tuple)
    run = kind == "run"
    return Op(
        draw(st.sampled_from(LANES)),
        kind,
        draw(value),
        form,
        src,
        dst,
        draw(some) if run else (),
        draw(some) if run else (),
        draw(SIZE) if run else 0,
        draw(st.lists(EVENT, max_size=3).map(tuple)),
        draw(st.one_of(st.just(""), NAME)),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Schedules that can be written, most of which no verifier would accept."""
    tiers = draw(st.lists(NAME, min_size=1, max_size=3, unique=True))
    compute = draw(st.sampled_from(tiers))
    budget = st.one_of(st.none(), SIZE)
    values = st.builds(
        Value,
        NAME,
        st.sampled_from(KINDS),
        NAME,
        SIZE,
        st.one_of(st.none(), st.lists(st.integers(0, 99), max_size=3).map(tuple)),
        st.one_of(st.none(), SIZE),
        st.one_of(st.none(), st.sampled_from(tiers)),
    )
    chosen = draw(st.lists(values, min_size=1, max_size=5, unique_by=lambda v: v.name))
    op = an_op([v.name for v in chosen], tiers)
    regions = draw(
        st.lists(st.builds(Region, NAME, st.lists(op, max_size=6).map(tuple)), max_size=3, unique_by=lambda r: r.name)
    )
    world = draw(st.integers(1, 3))
    return Schedule(
        draw(NAME),
        tuple(Tier(name, draw(budget), name == compute) for name in tiers),
        tuple(chosen),
        tuple(regions),
        draw(st.integers(0, world - 1)),
        world,
    )


@given(schedules())
def test_any_schedule_comes_back_from_its_text(schedule: Schedule) -> None:
    text = print_schedule(schedule)
    assert parse_schedule(text) == schedule
    assert print_schedule(parse_schedule(text)) == text


def test_canonical_text_comes_back_from_its_schedule() -> None:
    assert print_schedule(parse_schedule(CANONICAL)) == CANONICAL
    assert str(parse_schedule(CANONICAL)) == CANONICAL


def test_fields_are_read() -> None:
    schedule = parse_schedule(CANONICAL)
    assert (schedule.name, schedule.rank, schedule.world) == ("step", 1, 2)
    assert schedule.tiers == (Tier("device", 4096, True), Tier("host", 2304), Tier("nvme"))
    assert schedule.value("l0.w") == Value("l0.w", "param", "bf16", 1024, (32, 16), 512, "nvme")
    assert schedule.value("x0").shape == () and schedule.value("y").shape is None
    assert schedule.regions[1].ops[0] == Op(
        "compute",
        "run",
        "fwd/l1",
        reads=("x0", "l0.w"),
        writes=("y",),
        work=3072,
        after=("all_gather(l0.w)@fwd/l0",),
        for_region="fwd/l1",
    )
    assert schedule.regions[0].ops[2] == Op("h2d", "release", "l0.w", "shard", "host")


def test_comments_spacing_and_missing_derived_lines_are_accepted() -> None:
    lines = [line for line in CANONICAL.splitlines() if not line.lstrip().startswith(("live", "peak"))]
    loose = "# a schedule\n" + "\n".join(f"{' '.join(line.split())}  # why" for line in lines)
    assert print_schedule(parse_schedule(loose)) == CANONICAL


@pytest.mark.parametrize(
    ("old", "new", "number", "message"),
    [
        ("device=1KiB", "device=1.5KiB", 16, "device=1.5KiB host=0B': expected 'live device=1KiB host=0B'"),
        ("4609B at", "4610B at", 23, "expected 'peak device 4609B at run(fwd/l1)@fwd/l1'"),
        ("peak host 512B at read(l0.w)@fwd/l0\n", "", 23, "or all 4"),
    ],
)
def test_wrong_derived_lines_are_errors(old: str, new: str, number: int, message: str) -> None:
    with pytest.raises(ScheduleSyntaxError) as error:
        parse_schedule(CANONICAL.replace(old, new))
    assert message in str(error.value) and error.value.number == number


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tier", "'tier NAME [BUDGET] [compute]'"),
        ("tier disk 12", "'12' is not a size"),
        ("value a param f32", "'value NAME KIND DTYPE [SHAPE] SIZE [shard=SIZE] [home=TIER]'"),
        ("value a weight f32 1KiB", "a kind of value (param, grad, state, act, input, output) instead of 'weight'"),
        ("value a param f32 [2,x] 1KiB", "'value NAME KIND DTYPE [SHAPE] SIZE [shard=SIZE] [home=TIER]'"),
        ("value a param f32 1KiB house=nvme", "'home=...' instead of 'house=nvme'"),
        ("value after param f32 1KiB", "no keyword) instead of 'after'"),
        ("region", "'region NAME'"),
        ("gpu read l0 nvme->host", "or a lane (compute, comm, h2d, d2h, nvme_read, nvme_write, update)"),
        ("comm gather l0", "KIND is one of read, write, reload, offload"),
        ("comm release l0", "VALUE:FORM@TIER"),
        ("comm release l0:half@host", "VALUE:FORM@TIER"),
        ("compute run a reads", "at least one name after 'reads'"),
        ("compute run a after read", "an event as KIND(VALUE) or KIND(VALUE)@REGION instead of 'read'"),
        ("compute run a for", "the region this line is for"),
        ("compute run a work=1KB", "'1KB' is not a size"),
        ("compute run a writes b reads c", "in this order"),
        ("plan again rank=0 world=1", "one line 'plan NAME rank=R world=W'"),
    ],
)
def test_syntax_errors_say_where_and_what_was_expected(line: str, expected: str) -> None:
    text = f"zsched 1\nplan step rank=0 world=1\ntier host compute\nregion r\n{line}\n"
    with pytest.raises(ScheduleSyntaxError) as error:
        parse_schedule(text)
    assert error.value.number == 5 and error.value.line == line
    assert expected in error.value.expected
    assert str(error.value) == f"line 5: {line!r}: expected {error.value.expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'zsched 1' and a line"),
        ("zsched 2\n", "'zsched 1', the first line"),
        ("zsched 1\nplan a rank=1 world=1\ntier host compute\n", "rank below world"),
        ("zsched 1\nplan a rank=0 world=1\ntier host\n", "exactly one tier marked 'compute'"),
        ("zsched 1\nplan a rank=0 world=1\ntier host compute\ncompute run a\n", "'region NAME' before the first op"),
    ],
)
def test_incomplete_texts_are_errors(text: str, expected: str) -> None:
    with pytest.raises(ScheduleSyntaxError) as error:
        parse_schedule(text)
    assert expected in error.value.expected


def test_names_that_cannot_be_read_back_are_not_written() -> None:
    with pytest.raises(ValueError, match="'a b' cannot be a name"):
        print_schedule(Schedule("step", (Tier("host", None, True),), (Value("a b", "act", "f32", 1),), ()))


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (512, "512B"),
        (1024, "1KiB"),
        (1025, "1025B"),
        (1536, "1.5KiB"),
        (1280, "1.25KiB"),
        (1152, "1152B"),
        (256 << 20, "256MiB"),
        (5 << 28, "1.25GiB"),
        ((1 << 30) + 1024, "1048577KiB"),
        (3 << 40, "3072GiB"),
    ],
)
def test_sizes_are_exact(n: int, text: str) -> None:
    assert format_bytes(n) == text and parse_bytes(text) == n


@given(st.integers(0, 1 << 45))
def test_sizes_come_back(n: int) -> None:
    assert parse_bytes(format_bytes(n)) == n


@pytest.mark.parametrize("text", ["", "1", "KiB", "1.234KiB", "0.1KiB", "-1B", "1 KiB", "1.5B", "1TiB"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size|whole number of bytes"):
        parse_bytes(text)
