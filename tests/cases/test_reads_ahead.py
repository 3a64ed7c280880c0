"""The schedule says that each read is issued before its use, and how many bytes are read behind computing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import zcompiler
from tests.cases.steps import assert_moved, finish, same, twins
from tests.right.twins import ALL_ON_NVME, moved
from tests.training.pair import Pair
from zcompiler.schedule.model import Op, Region, Schedule

NO_GRADIENTS = {"params": "nvme", "grads": "host", "optimizer": "nvme"}


class Layers(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(18)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


EQUAL = (96,) * 9
UNEQUAL = (96, 400, 32, 900, 96, 96)


def trained(folder: Path, widths: tuple[int, ...], place: dict[str, str] = NO_GRADIENTS, **options: Any) -> Pair:
    own = twins(folder, Layers(widths), place, **options)
    for i in range(3):
        x = torch.linspace(-1, 1, 4 * 96).reshape(4, 96) + i
        same(own, lambda side, x=x: finish(side, side.forward({"x": x})))
    assert_moved(own, place)
    return own


def reads(schedule: Schedule) -> Iterator[tuple[Region, Op, Region]]:
    """Each read with the region that issues it and the first region that uses it."""
    waiting: dict[str, tuple[Region, Op]] = {}
    read: set[str] = set()
    for region, op in schedule.ops():
        if op.kind == "read":
            assert op.value not in waiting, f"{op.value} is read twice before it is used"
            waiting[op.value] = (region, op)
            read.add(op.value)
        elif op.kind == "run":
            stored = {value for value in op.reads if schedule.value(value).home == "nvme"}
            assert stored <= read, f"{op.value} uses {stored - read}, which no line above it reads"
            for value in sorted(stored & waiting.keys()):
                assert f"read({value})" in {event.split("@")[0] for event in op.after}, f"{op.value} does not wait"
                yield *waiting.pop(value), region
    assert not waiting, f"read and never used: {list(waiting)}"


def ahead(schedule: Schedule) -> tuple[int, int]:
    """Bytes of reads that are issued in an earlier region than their use, and bytes of all reads."""
    found = [(schedule.value(op.value).nbytes, issued is not used) for issued, op, used in reads(schedule)]
    return sum(size for size, early in found if early), sum(size for size, _ in found)


def late(schedule: Schedule) -> dict[str, int]:
    """The regions that have to wait for a read that they issue themselves, and its bytes."""
    found: dict[str, int] = {}
    for issued, op, used in reads(schedule):
        if issued is used:
            found[used.name] = found.get(used.name, 0) + schedule.value(op.value).nbytes
    return found


def test_each_read_but_the_first_is_issued_before_the_region_that_uses_it(disk: Path) -> None:
    """Backward begins with what forward left, and reads behind it."""
    own = trained(disk, EQUAL)
    schedules = zcompiler.schedule(own.ours.model)
    assert late(schedules["graph0"]).keys() == {"fwd/layers.0"}
    assert late(schedules["update"]).keys() == {"update/layers.0"}
    for name, schedule in schedules.items():
        for issued, op, used in reads(schedule):
            assert (op.for_region or issued.name) == used.name
        hidden, total = ahead(schedule)
        assert hidden == total - sum(late(schedule).values()) > total * 0.8, name


def test_without_reading_ahead_the_same_bytes_are_read_where_they_are_used(disk: Path) -> None:
    pairs = {prefetch: trained(disk, EQUAL, prefetch=prefetch) for prefetch in ("auto", 0)}
    graphs = {key: zcompiler.schedule(own.ours.model)["graph0"] for key, own in pairs.items()}
    assert ahead(graphs[0]) == (0, ahead(graphs["auto"])[1])
    for kind in ("param", "state"):
        assert moved(pairs[0].ours.model, kind) == moved(pairs["auto"].ours.model, kind)
    pairs["auto"].assert_equal_weights()


def test_layers_of_unequal_sizes_are_read_ahead_as_far_as_the_limit_leaves_room(disk: Path) -> None:
    hidden = []
    for memory in ("5MiB", "64MiB"):
        own = trained(disk, UNEQUAL, memory=memory)
        schedule = zcompiler.schedule(own.ours.model)["graph0"]
        early, total = ahead(schedule)
        hidden.append(early)
        stats = zcompiler.stats(own.ours.model)
        assert max(stats.peak["host"], stats.planned_peak["host"]) <= int(memory[:-3]) << 20
        assert total > early > 0
    assert hidden[0] <= hidden[1]


def test_an_update_reads_the_next_part_while_one_is_updated_and_writes_behind(disk: Path) -> None:
    """With gradients on nvme all that an update touches is read for it, once."""
    own = trained(disk, EQUAL, ALL_ON_NVME, memory="2MiB")
    schedule = zcompiler.schedule(own.ours.model)["update"]
    assert len(schedule.regions) > 2, "the update is not cut into parts: nothing could overlap"
    assert late(schedule).keys() == {schedule.regions[0].name}
    _, total = ahead(schedule)
    assert total == sum(v.nbytes for v in schedule.values)
    for region in schedule.regions:
        kinds = [op.kind for op in region.ops]
        assert kinds.index("run") < kinds.index("write"), region.name
