"""Under autocast a copy of each parameter in 16 bits is read, the same numbers come out, and fewer bytes move."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import zcompiler
from runtime_ext.nvme import NvmeStore, Syscalls
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_on_nvme, moved
from tests.training.autocasting import DATA, Autocasting, cast_bytes, copied, train, twins
from tests.training.looks import stored_bytes
from tests.training.pair import Side
from zcompiler.plan.planner import MIB
from zcompiler.schedule.model import Schedule
from zcompiler.training import session


def names(schedule: Schedule) -> set[str]:
    return {v.name for v in schedule.values if v.kind == "param"}


def low_names(values: Iterable[str]) -> set[str]:
    return {name for name in values if name.endswith((":bf16", ":f16"))}


@pytest.mark.parametrize(("late", "place"), [(True, ALL_ON_NVME), (False, ON_NVME)], ids=["late", "at once"])
def test_training_under_autocast_is_bit_for_bit_training_in_memory(
    late: bool, place: dict[str, str], disk: Path
) -> None:
    own = twins(disk, steps=6, late=late, place=place)
    assert_on_nvme(own.ours.model, "param", "state", *(["grad"] if place is ALL_ON_NVME else []))
    assert (zcompiler.stats(own.ours.model).late > 0) == late
    schedules = zcompiler.schedule(own.ours.model)
    low = {"layers.0:bf16", "layers.1:bf16", "middle:bf16"}
    assert {n for n in names(schedules["graph0"]) if ":" in n} == low
    assert {"layers.0", "layers.1", "embedding"} < names(schedules["graph0"])
    written = [op.value for _, op in schedules["update"].ops() if op.kind == "write"]
    assert len(low_names(written)) == len(low)
    released = [op.value for _, op in schedules["update"].ops() if op.kind == "release"]
    assert low_names(released) == low_names(names(schedules["update"]))
    stats = zcompiler.stats(own.ours.model)
    assert 0 < stats.peak["host"] <= stats.planned_peak["host"] < 4 * MIB
    assert stats.fallbacks == ()


def test_half_the_bytes_are_read_for_compute_and_the_copies_are_written_once_a_step(disk: Path) -> None:
    """Parameters that are cast: 2 bytes each in forward and in backward instead of 4, and 2 written by the update."""
    bytes_of: dict[bool, list[tuple[int, int]]] = {}
    for autocast in (True, False):
        module = Autocasting()
        module.low = torch.bfloat16 if autocast else None
        own = twins(disk, module=module, late=False, prefetch=0)
        zcompiler.reset_stats(own.ours.model)
        loss = own.ours.forward(DATA[0])
        phases = [moved(own.ours.model, "param")]
        loss.backward()
        phases.append(moved(own.ours.model, "param"))
        own.ours.optimizer.step()
        phases.append(moved(own.ours.model, "param"))
        before = [(0, 0), *phases]
        bytes_of[autocast] = [(r - br, w - bw) for (r, w), (br, bw) in zip(phases, before, strict=False)]
        torch._dynamo.reset()
    (forward, backward, update), (whole_forward, whole_backward, whole_update) = bytes_of[True], bytes_of[False]
    full, half = cast_bytes(module, 4), cast_bytes(module, 2)
    assert half < 0.6 * full  # a bias takes a page in either type
    assert whole_forward[0] - forward[0] == full - half
    kept = 64 * 64 * 2  # what the two forms of `middle` differ by: forward used it last and keeps it for backward
    assert whole_backward[0] - backward[0] == full - half - kept
    assert (forward[1], backward[1]) == (0, 0)
    assert update[0] == whole_update[0]
    assert update[1] - whole_update[1] == half


def test_evaluation_without_autocast_and_in_another_type_between_steps(disk: Path) -> None:
    own = twins(disk)

    def evaluate(side: Side, low: torch.dtype | None) -> torch.Tensor:
        side.module.low = low
        with torch.no_grad():
            loss = side.forward(DATA[3])
        side.module.low = torch.bfloat16
        return loss

    for _ in range(2):
        for low in (None, torch.float16, torch.bfloat16):
            own.same(lambda side, low=low: evaluate(side, low))
        train(own)
    weight = own.ours.module.middle.weight
    assert copied(weight)
    # No graph has asked for the copy in float16 since the last update but one, so that wrote no such copy.
    assert not copied(weight, torch.float16)
    assert not any(name.endswith(":f16") for name in names(zcompiler.schedule(own.ours.model)["update"]))


def test_gradients_add_up_over_micro_batches_and_copies_go_with_their_model(disk: Path) -> None:
    own = twins(disk)
    for _ in range(2):
        for batch in DATA[:3]:
            for side in own.sides():
                side.forward(batch).backward()
        own.assert_equal_gradients()
        for side in own.sides():
            nn.utils.clip_grad_norm_(side.module.parameters(), 0.5)
            side.optimizer.step()
            side.optimizer.zero_grad()
    own.assert_equal_weights()
    assert copied(own.ours.module.middle.weight)
    assert stored_bytes(disk) > 0
    zcompiler.restore(own.ours.model)
    gc.collect()
    assert stored_bytes(disk) == 0


class Uses(nn.Module):
    """Parameters in every kind of use."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("cast", "wide", "both", "two", "out", "cast_out", "turned", "frozen"):
            dtype = torch.float64 if name == "wide" else torch.float32
            setattr(self, name, nn.Parameter(torch.randn(16, 16, dtype=dtype) / 4))
        self.frozen.requires_grad_(False)
        self.already = nn.Parameter(torch.randn(16, 16).bfloat16() / 4)

    def forward(self, x: torch.Tensor) -> Any:
        low, half = torch.bfloat16, torch.float16
        cast_out = self.cast_out.to(low)
        y = x.to(low) @ self.cast.to(low) @ self.wide.to(low) @ self.frozen.to(low) @ self.already
        y = y @ self.both.to(low) + (x @ self.both).to(low)
        y = y @ self.two.to(low) + (x.to(half) @ self.two.to(half)).to(low)
        y = y @ self.out.to(low) @ cast_out @ self.turned.t().to(low)
        return y.float().square().mean(), self.out, cast_out


def test_only_what_is_cast_in_one_way_is_read_as_a_copy(disk: Path) -> None:
    torch.manual_seed(2)
    own = twins(disk, module=Uses(), steps=0)

    def step(side: Side, x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss, out, cast_out = side.model(x)
        loss.backward()
        side.optimizer.step()
        side.optimizer.zero_grad()
        return {"loss": loss.detach(), "out": out.detach().clone(), "cast out": cast_out.detach().clone()}

    for i in range(3):
        ours, theirs = own.each(lambda side, i=i: step(side, torch.full((3, 16), 0.5 + i)))
        assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    own.assert_equal_weights()
    assert {name for name, p in own.ours.module.named_parameters() if copied(p)} == {"cast", "wide", "out", "frozen"}


def test_parameters_in_memory_and_plain_16_bit_models_have_no_copies(disk: Path) -> None:
    for place, module in ((ON_HOST, Autocasting()), (ALL_ON_NVME, Autocasting().bfloat16())):
        own = twins(disk, module=module, place=place, master="float32", steps=0)
        own.ours.step(DATA[0])
        assert not any(low_names(names(s)) for s in zcompiler.schedule(own.ours.model).values())
        assert not any(copied(p) for p in module.parameters())
        torch._dynamo.reset()


def test_a_file_system_that_does_not_tell_of_edits_gets_no_copies(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(paths: Any) -> NvmeStore:
        return NvmeStore(paths, calls=Syscalls(fstat=lambda descriptor: SimpleNamespace(st_mtime_ns=0)))  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(session, "NvmeStore", store)
    with pytest.warns(RuntimeWarning, match="does not tell when a mapped file is written"):
        own = twins(disk, memory="255MiB")
    assert_on_nvme(own.ours.model, "param", "grad", "state")
    assert not low_names(names(zcompiler.schedule(own.ours.model)["graph0"]))
