"""What `zcompiler.trace` saves is what was done: the schedule's ops, in order, with the bytes that were counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.failing import Disk
from tests.right.models import built, mlp
from tests.right.twins import ALL_ON_NVME, ON_NVME, loss_of, with_zinf
from tests.training.pair import DATA, Pair, pair
from zcompiler.errors import ZinfError
from zcompiler.schedule.model import Op
from zcompiler.schedule.text import op_line

LANES = ("compute", "update", "nvme_read", "nvme_write")
THREADS = 2  # of each lane of the disk


class File:
    """A saved trace, read back."""

    def __init__(self, path: Path) -> None:
        self.content = json.loads(path.read_text())
        self.events = self.content["traceEvents"]

    def on(self, pid: int, *tracks: str) -> list[dict[str, Any]]:
        found = [e for e in self.events if e["ph"] == "X" and e["pid"] == pid and e["cat"] in tracks]
        return sorted(found, key=lambda e: e["ts"])

    def threads(self, pid: int) -> Iterator[list[dict[str, Any]]]:
        for tid in {e["tid"] for e in self.events if e["ph"] == "X" and e["pid"] == pid}:
            yield sorted((e for e in self.events if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)), key=begin)


def begin(event: dict[str, Any]) -> float:
    return event["ts"]


def end(event: dict[str, Any]) -> float:
    return round(event["ts"] + event["dur"], 3)


def text(op: Op) -> str:
    return " ".join(op_line(op).split())


def traced(made: Pair, path: Path, steps: int = 1) -> File:
    with zcompiler.trace() as recorded:
        for batch in DATA[:steps]:
            made.same(lambda side, batch=batch: side.step(batch))
    recorded.save(path)
    return File(path)


@pytest.mark.parametrize("place", [ON_NVME, ALL_ON_NVME], ids=["gradients in memory", "gradients on nvme"])
def test_a_step_is_the_ops_of_its_schedules_with_the_bytes_of_the_statistics(
    disk: Path, tmp_path: Path, place: dict[str, str]
) -> None:
    made = pair(disk, place=place, late=False)
    zcompiler.reset_stats(made.ours.model)
    file = traced(made, tmp_path / "step.json")
    stats, schedules = zcompiler.stats(made.ours.model), zcompiler.schedule(made.ours.model)
    made.assert_equal_weights()

    ops = [op for name in ("graph0", "update") for _, op in schedules[name].ops() if op.kind != "release"]
    for lane in LANES:
        wanted = [text(op) for op in ops if op.lane == lane]
        assert wanted and [e["args"]["op"] for e in sorted(file.on(1, lane), key=issued)] == wanted
        assert Counter(e["args"]["op"] for e in file.on(2, lane)) == Counter(wanted)  # and so it was planned
    for lane, counted in (("nvme_read", stats.read), ("nvme_write", stats.written)):
        moved = sum(e["args"]["bytes"] for e in file.on(1, lane))
        assert moved == sum(counted["nvme"].values()) > 0
        assert sum(e["args"]["bytes"] for e in file.on(2, lane)) == moved


def issued(event: dict[str, Any]) -> float:
    return event["args"].get("issued", event["ts"])


def test_nothing_overlaps_on_a_track_and_a_lane_does_as_many_at_once_as_it_has_threads(
    disk: Path, tmp_path: Path
) -> None:
    file = traced(pair(disk, late=False), tmp_path / "step.json", steps=2)
    for pid in (1, 2):
        for thread in file.threads(pid):
            assert all(end(a) <= begin(b) for a, b in pairwise(thread))
    for lane in LANES:
        assert len({e["tid"] for e in file.on(1, lane)}) <= (THREADS if lane.startswith("nvme") else 1)
        assert len({e["tid"] for e in file.on(2, lane)}) == 1


def test_a_run_begins_behind_what_it_waits_for_and_a_write_behind_the_run_that_makes_its_value(
    disk: Path, tmp_path: Path
) -> None:
    made = pair(disk, late=False)
    file = traced(made, tmp_path / "step.json")
    for pid in (1, 2):
        by_name = {(e["args"]["schedule"], e["name"]): e for e in file.on(pid, *LANES)}
        waits = 0
        for name in ("graph0", "update"):
            for region, op in zcompiler.schedule(made.ours.model)[name].ops():
                for event in op.after if op.kind != "release" else ():
                    full = event if "@" in event else f"{event}@{region.name}"
                    waits += 1
                    assert end(by_name[name, full]) <= begin(by_name[name, f"{op.kind}({op.value})@{region.name}"])
        assert waits > 10


def test_a_late_update_lands_on_its_lane_inside_the_next_forward(disk: Path, tmp_path: Path) -> None:
    made = pair(disk, steps=0)
    for batch in DATA[:3]:  # nobody looks at a weight, which would complete the update
        made.same(lambda side, batch=batch: side.step(batch))
    with zcompiler.trace() as recorded:
        made.same(lambda side: side.step(DATA[3]))
    assert zcompiler.stats(made.ours.model).late == 3
    recorded.save(tmp_path / "step.json")
    file = File(tmp_path / "step.json")
    made.assert_equal_weights()  # completes the update that the step has left, outside the trace
    update = zcompiler.schedule(made.ours.model)["update"]
    forward = next(e for e in file.on(1, "phases") if e["name"] == "fwd")
    runs = file.on(1, "update")
    assert [e["args"]["region"] for e in runs] == [region.name for region in update.regions]
    assert all(begin(forward) <= begin(e) and end(e) <= end(forward) for e in runs)
    assert {e["args"]["region"] for e in file.on(2, "update")} == {region.name for region in update.regions}


def test_each_of_several_graphs_is_told_apart_and_planned_alone(disk: Path, tmp_path: Path) -> None:
    made = pair(disk, late=False)
    second = with_zinf(torch.nn.Linear(7, 7), disk, late=False)
    elsewhere = with_zinf(torch.nn.Linear(7, 5), disk, late=False, memory="32MiB")
    with zcompiler.trace() as recorded:
        second(torch.ones(2, 7)).sum().backward()
        made.same(lambda side: side.step(DATA[2]))
        elsewhere(torch.ones(2, 7)).sum().backward()
    recorded.save(tmp_path / "step.json")
    file = File(tmp_path / "step.json")
    first, other = file.content["zinf"]["sessions"]
    for pid in (first["pid"], first["planned"]):
        phases = [(e["args"]["schedule"], e["name"]) for e in file.on(pid, "phases")]
        graphs = [(graph, phase) for graph in ("graph1", "graph0") for phase in ("fwd", "bwd")]
        assert phases == [*graphs, ("update", "update")]
    assert first["schedules"].keys() == {"graph0", "graph1", "update"}
    assert first["plans"].keys() == {"graph0", "graph1"}
    # Other options are another session. Its step was not ended.
    assert [e["args"]["step"] for e in file.on(other["pid"], "phases")] == [1, 1]
    assert file.on(other["pid"], "nvme_read") and not file.on(other["planned"], "compute")


def test_what_raised_goes_on_and_what_was_done_before_it_can_be_saved(disk: Path, tmp_path: Path) -> None:
    made = pair(disk, late=False)

    class Stopped(Exception):
        pass

    def stop(gradient: torch.Tensor) -> None:
        raise Stopped

    recorded = zcompiler.trace()
    with pytest.raises(Stopped), recorded:
        loss = made.ours.forward(DATA[2])
        loss.register_hook(stop)
        loss.backward()
    recorded.save(tmp_path / "step.json")
    file = File(tmp_path / "step.json")
    assert [e["name"] for e in file.on(1, "phases")] == ["fwd"]
    assert len(file.on(1, "compute")) == sum(
        r.phase == "fwd" for r in zcompiler.schedule(made.ours.model)["graph0"].regions
    )
    made.theirs.forward(DATA[2])
    made.goes_on()


def test_a_failed_transfer_says_so_in_the_file(disk: Path, tmp_path: Path, failing: Disk) -> None:
    made = pair(disk, late=False)
    failing.fails = {"read"}
    with pytest.raises(OSError), zcompiler.trace() as recorded:
        made.ours.forward(DATA[2])
    failing.fails = set()
    recorded.save(tmp_path / "step.json")
    errors = [e["args"]["error"] for e in File(tmp_path / "step.json").on(1, "nvme_read") if "error" in e["args"]]
    assert errors and all("StoreError" in error for error in errors)


def test_memory_is_counted_by_what_holds_it_and_stays_inside_the_limit(disk: Path, tmp_path: Path) -> None:
    made = pair(disk, steps=0, late=False, place={"params": "nvme", "grads": "host", "optimizer": "host"})
    made.same(lambda side: side.step(DATA[0]))
    file = traced(made, tmp_path / "step.json")
    held = [e["args"] for e in file.events if e["ph"] == "C" and e["pid"] == 1 and e["name"] == "held host"]
    size = sum(p.nbytes for p in made.ours.module.parameters())
    most = {part: max(h[part] for h in held) for part in ("buffers", "tensors", "at rest")}
    assert most["buffers"] > 0 and most["tensors"] > 0
    assert most["at rest"] == 3 * size  # two states of AdamW, and during the update the gradients
    limit = file.content["zinf"]["sessions"][0]["memory"]
    planned = [e["args"]["held"] for e in file.events if e["ph"] == "C" and e["pid"] == 2]
    assert max(sum(h.values()) for h in held) < limit and 0 < max(planned) <= limit


def test_one_trace_at_a_time(disk: Path) -> None:
    with zcompiler.trace(), pytest.raises(ZinfError, match="a trace is running already"), zcompiler.trace():
        raise AssertionError
    with zcompiler.trace() as recorded, pytest.raises(ZinfError, match="save it behind its with block"):
        recorded.save(disk / "step.json")


def test_a_trace_without_anything_of_zinf_is_refused(tmp_path: Path) -> None:
    with zcompiler.trace() as recorded:
        torch.nn.Linear(2, 2)(torch.ones(2))
    with pytest.raises(ZinfError, match="nothing was recorded: no graph compiled with backend zinf ran"):
        recorded.save(tmp_path / "step.json")
    assert not (tmp_path / "step.json").exists()


def test_what_is_compiled_inside_is_recorded_from_its_first_call_on(disk: Path, tmp_path: Path) -> None:
    with zcompiler.trace() as recorded:
        model = with_zinf(built(mlp), disk)
        loss_of(model(**DATA[0])).backward()
    recorded.save(tmp_path / "step.json")
    file = File(tmp_path / "step.json")
    assert [e["name"] for e in file.on(1, "phases")] == ["fwd", "bwd"]
    first = file.on(1, "nvme_write")
    # Parameters are taken over: no line of a schedule says so.
    assert sum(e["args"]["bytes"] for e in first) == zcompiler.stats(model).written["nvme"]["param"]
    assert all("op" not in e["args"] for e in first)
