"""What a late update may hold beside the next forward: gradients in memory count until their parameter is updated."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import torch

from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.training.ordering import Uses
from zcompiler.training.resting import Record

KIB = 1 << 10


def forward(*reads: str) -> Schedule:
    values = tuple(Value(name, "param", "f32", KIB, home="nvme") for name in dict.fromkeys(reads))
    regions = []
    for i, name in enumerate(reads):
        title = f"fwd/{i}"
        regions.append(Region(title, (Op("compute", "run", title, reads=(name,), work=(i + 1) * KIB),)))
    return Schedule("graph", (Tier("host", 10 * KIB, True), Tier("nvme")), values, tuple(regions))


def member() -> Any:
    """One with a gradient of 4 KiB in memory."""
    record = Record(SimpleNamespace(), 0, torch.float32, torch.Size([1024]), (1,))  # type: ignore[arg-type]
    return SimpleNamespace(record=record, stored_grad=None, p=torch.empty(1024))


def room(m: Any, *reads: str, parts: tuple[str, ...] = ()) -> int:
    uses = Uses()
    uses.note(forward(*reads), {name: [weakref.ref(m.record)] for name in set(reads)}, parts)
    return uses.ahead([m])[1]


def test_a_gradient_goes_before_the_first_use_of_its_parameter() -> None:
    m = member()
    assert room(m, "w", "w") == 10 * KIB - 4 * KIB  # it is still there when its own update begins
    assert room(m, *["w"] * 7) == 10 * KIB - 7 * KIB


def test_a_gradient_of_a_parameter_in_tiles_goes_before_the_last_tile() -> None:
    m = member()
    rows = ("w/0", "w/1", "w/2")
    assert room(m, *rows, parts=rows) == 10 * KIB - 2 * KIB - 4 * KIB


def test_a_gradient_goes_with_the_first_use_of_the_whole_parameter() -> None:
    m = member()
    rows = ("w/0", "w/1")
    assert room(m, "w", *rows, parts=rows) == 10 * KIB - 4 * KIB
    assert room(m, "w", *rows, *rows, parts=rows) == 10 * KIB - 5 * KIB
