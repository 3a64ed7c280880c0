from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch.fx

from zcompiler.passes.base import Facts, Pass, PassFailure
from zcompiler.passes.gather_params import GatherParams
from zcompiler.passes.partition_params import PartitionParams
from zcompiler.passes.pipeline import PassError, PipelineError, parse_pipeline, print_pipeline, run_pipeline
from zcompiler.passes.prefetch_reads import PrefetchReads
from zcompiler.passes.release_params import ReleaseParams
from zcompiler.schedule.graph import op_nodes, op_of
from zcompiler.schedule.model import Schedule, Tier
from zcompiler.schedule.text import parse_schedule, print_schedule
from zcompiler.schedule.verify import same_comm, verify

TEXT = """zsched 1
plan step rank=0 world=1
tier host 4KiB compute
tier nvme
value x0 input f32 1KiB
value l0 param f32 2KiB
value y output f32 1KiB
region fwd/l0
  compute run fwd/l0 reads x0 l0 writes y
"""


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "gather-params",
        "partition-params{home=nvme},gather-params,release-params",
        "partition-params{home=nvme only=l*+emb keep=*.norm}",
        "reduce-grads,offload-grads{home=host},keep-last-unit,prefetch-reads{bytes=1.25GiB}",
    ],
)
def test_spec_round_trips(spec: str) -> None:
    assert print_pipeline(parse_pipeline(spec)) == spec


def test_spec_is_read_with_spaces_and_options_in_any_order() -> None:
    found = parse_pipeline(" partition-params{ keep=a+b   home=nvme } , gather-params ,prefetch-reads{bytes=2KiB}")
    assert found == (PartitionParams("nvme", keep=("a", "b")), GatherParams(), PrefetchReads(2048))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gather", "no pass 'gather'; there are partition-params, gather-params, release-params"),
        ("gather-params{deep=1}", "gather-params has no option 'deep=1'; its options are: none"),
        ("partition-params", "partition-params needs {home=NAME}"),
        ("partition-params{home}", "no option 'home'; its options are: home=NAME, only=GLOB+GLOB, keep=GLOB+GLOB"),
        ("partition-params{home=}", "home= is empty"),
        ("prefetch-reads{bytes=2}", "bytes: '2' is not a size"),
        ("gather-params;release-params", "cannot read 'gather-params;release-params'"),
    ],
)
def test_bad_specs_say_what_exists(spec: str, message: str) -> None:
    with pytest.raises(PipelineError) as error:
        parse_pipeline(spec)
    assert message in str(error.value)


def test_order_is_checked_before_anything_runs() -> None:
    seen: list[str] = []
    with pytest.raises(PipelineError, match="release-params stands before gather-params"):
        run_pipeline(parse_schedule(TEXT), [ReleaseParams(), GatherParams()], lambda name, _: seen.append(name))
    assert seen == []


@dataclass(frozen=True)
class Rival(Pass):
    name: ClassVar[str] = "rival"
    conflicts: ClassVar[tuple[str, ...]] = ("gather-params",)

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        raise AssertionError("must not run")


def test_conflicts_are_checked_before_anything_runs() -> None:
    with pytest.raises(PipelineError, match="rival conflicts with gather-params"):
        run_pipeline(parse_schedule(TEXT), [GatherParams(), Rival()])


@dataclass(frozen=True)
class DropReleases(Pass):
    name: ClassVar[str] = "drop-releases"

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        for node in op_nodes(graph):
            if op_of(node).value == "l0" and not node.users:
                graph.erase_node(node)


def test_a_pass_that_breaks_a_rule_is_named_with_the_bad_line_marked() -> None:
    broken = [*parse_pipeline("partition-params{home=nvme},gather-params,release-params"), DropReleases()]
    with pytest.raises(PassError) as error:
        run_pipeline(parse_schedule(TEXT), broken)
    lines = str(error.value).splitlines()
    assert lines[0] == (
        "after pass drop-releases: [leak] fwd/l0: l0:full@host (2KiB), made by read(l0)@fwd/l0, is never released"
    )
    assert "-->    nvme_read  read           l0 nvme->host" in lines
    assert "       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ leak" in lines
    assert error.value.pass_name == "drop-releases"


def test_a_pipeline_that_stops_halfway_is_refused_unless_partial() -> None:
    half = parse_pipeline("partition-params{home=nvme},gather-params")
    with pytest.raises(PassError, match=r"\[leak\]"):
        run_pipeline(parse_schedule(TEXT), half)
    assert [p.rule for p in verify(run_pipeline(parse_schedule(TEXT), half, partial=True))] == ["leak"]


def test_a_schedule_that_does_not_fit_is_refused_at_the_end() -> None:
    small = parse_schedule(TEXT.replace("4KiB compute", "2KiB compute"))
    with pytest.raises(PassError) as error:
        run_pipeline(small, parse_pipeline("partition-params{home=nvme},gather-params,release-params"))
    expected = (
        "fwd/l0: run fwd/l0 raises host to 3KiB; the budget is 2KiB (1KiB over). Raise the memory of host to 3KiB."
    )
    assert expected in str(error.value)


def test_on_pass_sees_every_schedule() -> None:
    seen: list[tuple[str, Schedule]] = []
    pipeline = parse_pipeline("partition-params{home=nvme},gather-params,release-params")
    result = run_pipeline(parse_schedule(TEXT), pipeline, lambda name, schedule: seen.append((name, schedule)))
    assert [name for name, _ in seen] == ["partition-params", "gather-params", "release-params"]
    assert seen[-1][1] == result


def test_an_unknown_or_unreachable_home_is_refused() -> None:
    with pytest.raises(PassError, match="there is no tier tape; this schedule has host, nvme"):
        run_pipeline(parse_schedule(TEXT), parse_pipeline("partition-params{home=tape}"), partial=True)
    lost = Facts((Tier("device", None, True), Tier("nvme")), (), "comm", 0, 1)
    with pytest.raises(PassFailure, match="no lane leads from nvme to device"):
        lost.route("nvme", "device")


def test_ranks_issue_the_same_collectives() -> None:
    spec = "partition-params{home=nvme},gather-params,release-params,reduce-grads,prefetch-reads{bytes=4KiB}"
    two = TEXT.replace("world=1", "world=2")
    first, second = (
        run_pipeline(parse_schedule(two.replace("rank=0", f"rank={rank}")), parse_pipeline(spec)) for rank in (0, 1)
    )
    assert "all_gather" in print_schedule(first)
    assert same_comm(first, second)
