"""What an optimizer step updates: parameters with all that the update needs of them, cut into parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from runtime_ext.interface import Segment
from zcompiler.analyse.sizes import short_name
from zcompiler.layout import ALIGNMENT
from zcompiler.lower.ranges import Range, Ranges
from zcompiler.stages.update import Updated
from zcompiler.training.resting import Record, Unit
from zcompiler.training.states import MASTER, StateLayout, stored_state
from zcompiler.training.tensors import is_dense


@dataclass(slots=True)
class Member:
    """A parameter that this step updates. `grad` and `group` are as they were when the step was called: the update
    may still run when the user has changed them."""

    p: torch.Tensor
    group: dict[str, Any]
    record: Record
    layout: StateLayout
    grad: torch.Tensor | None  # None once the update no longer needs it
    stored_grad: tuple[Segment, int] | None  # segment and slot, when the gradient rests in the store
    states: dict[str, Any]  # what the optimizer holds for it
    fresh: bool  # the optimizer has no state for it yet
    scalars: dict[str, Any]  # its other states (the step count) as they were: each slice starts from these
    edits_grad: bool  # the step leaves another gradient behind than it finds
    master: Literal["no", "new", "there"] = "no"  # whether it is updated in a higher precision
    low: tuple[torch.dtype, ...] = ()  # the narrower types of which copies are written beside it

    def updated(self) -> Updated:
        """What a plan has to know of it."""
        states = tuple(dtype.itemsize for dtype in self.layout.values())
        low = tuple((short_name(dtype), dtype.itemsize) for dtype in self.low)
        homes, stored = self.record.unit.homes, self.stored_grad is not None
        return Updated(self.p.numel(), self.p.element_size(), homes, stored, states, low, self.edits_grad)

    def gradient(self) -> torch.Tensor:
        """The gradient with its elements in the parameter's order."""
        grad = self.grad
        assert grad is not None
        if grad.stride() == self.p.stride() and is_dense(grad):
            return grad
        return torch.empty_like(self.p, memory_format=torch.preserve_format).copy_(grad)


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `start` to `stop` of a parameter."""

    member: Member
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        return self.stop == self.member.p.numel()

    def padded(self, itemsize: int) -> int:
        return -(-(self.stop - self.start) * itemsize // ALIGNMENT) * ALIGNMENT

    def range(self, segment: Segment, slot: int, itemsize: int) -> Range:
        return Range(segment, segment.offsets[slot] + self.start * itemsize, self.padded(itemsize))


def forget_unmade(members: Iterable[Member]) -> None:
    """Of an update that has failed or was interrupted: what was laid out for states that it has not come to make goes,
    or the next step would take it for states."""
    for m in members:
        if m.grad is None:
            continue
        if m.fresh:
            m.states.clear()
        elif m.master == "new":
            m.states.pop(MASTER, None)


def stored_gradient(unit: Unit, p: torch.Tensor, grad: torch.Tensor) -> tuple[Segment, int] | None:
    """Where the store has a gradient, if it still is the tensor that backward made there and not a view of it."""
    if grad.shape != p.shape or grad.stride() != p.stride():
        return None
    address = grad.data_ptr()
    for pool in unit.gradients.values():
        for region in pool:
            slot = region.slots.get(address)
            if slot is not None and region.looks[slot]() is not None:
                return region.segment, slot
    return None


def low_values(name: str, piece: Sequence[Part]) -> dict[str, torch.dtype]:
    """The values of a sub-group that are cast copies of its parameters: NAME:bf16."""
    return {f"{name}:{short_name(dtype)}": dtype for part in piece for dtype in part.member.low}


def ranges_of(name: str, piece: Sequence[Part]) -> list[tuple[str, Ranges]]:
    """Where the values of a sub-group rest in the store, part by part; states part by part and key by key."""
    params, grads, states = [], [], []
    copies: dict[str, list[Range]] = {value: [] for value in low_values(name, piece)}
    for part in piece:
        m = part.member
        unit, slot, itemsize = m.record.unit, m.record.slot, m.p.element_size()
        if unit.parameters is not None:
            params.append(part.range(unit.parameters, slot, itemsize))
        if m.stored_grad is not None:
            grads.append(part.range(*m.stored_grad, itemsize))
        for dtype in m.low:
            segment = unit.low[dtype].segment
            copies[f"{name}:{short_name(dtype)}"].append(part.range(segment, slot, dtype.itemsize))
        for key, dtype in m.layout.items():
            if (home := stored_state(unit, slot, key, m.states.get(key))) is not None:
                states.append(part.range(home, slot, dtype.itemsize))
    found = [(name, params), (f"{name}:grad", grads), (f"{name}:state", states), *copies.items()]
    return [(value, Ranges(value, ranges)) for value, ranges in found if ranges]
