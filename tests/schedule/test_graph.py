from __future__ import annotations

from dataclasses import replace

import pytest

from zcompiler.schedule import ops
from zcompiler.schedule.graph import header, op_nodes, op_of, to_graph, to_schedule
from zcompiler.schedule.text import parse_schedule

TEXT = """zsched 1
plan update rank=0 world=1
tier host 8KiB compute
tier nvme
value l0 param f32 2KiB home=nvme
value l0.g grad f32 2KiB home=host
value x act f32 1KiB
value y output f32 1KiB

region update/l0
  nvme_read  read           l0 nvme->host
  update     run            update/l0 reads l0 l0.g writes l0 x after read(l0)
  nvme_write write          l0 host->nvme after run(update/l0)
  nvme_write release        l0:full@host

region update/l1

region fwd/l0
  nvme_read  read           l0 nvme->host after write(l0)@update/l0
  compute    run            fwd/l0 reads x l0 writes y after run(update/l0)@update/l0 read(l0)
  compute    release        l0:full@host
  compute    release        x:full@host
"""


def test_edges_are_who_made_what_is_used() -> None:
    graph = to_graph(parse_schedule(TEXT))
    graph.lint()
    names = {n.name: n for n in graph.nodes}
    assert names["run_update_l0"].args == (names["read_l0"], names["home_l0_g"])
    assert names["write_l0"].args == (names["written_l0"], names["home_l0"])
    assert names["read_l0_1"].args == (names["write_l0"],)
    assert names["run_fwd_l0"].args == (names["written_x"], names["read_l0_1"])
    assert names["release_l0"].args == (names["written_l0"],)
    assert names["run_fwd_l0"].meta["region"] == "fwd/l0"


def test_a_schedule_comes_back_with_its_waits_from_the_edges() -> None:
    schedule = parse_schedule(TEXT)
    assert to_schedule(to_graph(schedule)) == schedule


def test_dead_code_elimination_removes_no_line() -> None:
    schedule = parse_schedule(TEXT)
    graph = to_graph(schedule)
    graph.eliminate_dead_code()
    assert to_schedule(graph) == schedule


def test_a_moved_node_gets_the_waits_of_its_new_place() -> None:
    graph = to_graph(parse_schedule(TEXT))
    read, run = (next(n for n in op_nodes(graph) if n.name == name) for name in ("read_l0_1", "run_update_l0"))
    after_write = next(n for n in op_nodes(graph) if n.name == "release_l0")
    after_write.append(read)
    read.meta["region"], read.meta["op"] = "update/l0", replace(op_of(read), for_region="fwd/l0")
    moved = to_schedule(graph).regions[0].ops[-1]
    assert (moved.kind, moved.after, moved.for_region) == ("read", ("write(l0)",), "fwd/l0")
    assert "read(l0)@update/l0" in to_schedule(graph).regions[2].ops[0].after
    assert run.meta["region"] == "update/l0"


def test_nodes_of_a_region_must_stand_together() -> None:
    graph = to_graph(parse_schedule(TEXT))
    first = op_nodes(graph)[0]
    first.meta["region"] = "fwd/l0"
    with pytest.raises(ValueError, match="run_update_l0 is of update/l0, but stands after the first node of fwd/l0"):
        to_schedule(graph)


def test_an_operand_that_nobody_makes_comes_from_a_placeholder() -> None:
    text = TEXT.replace("  nvme_read  read           l0 nvme->host after write(l0)@update/l0\n", "")
    graph = to_graph(parse_schedule(text))
    graph.lint()
    run = next(n for n in op_nodes(graph) if n.name == "run_fwd_l0")
    assert [a.name for a in run.args] == ["written_x", "home_l0"]


def test_the_graph_is_not_run() -> None:
    with pytest.raises(RuntimeError, match="run the Schedule that to_schedule gives"):
        ops.read()


def test_the_header_carries_the_rest() -> None:
    head = header(to_graph(parse_schedule(TEXT)))
    assert head.regions == ("update/l0", "update/l1", "fwd/l0") and list(head.values) == ["l0", "l0.g", "x", "y"]
