"""One streamed optimizer step: the optimizer's own code, run on slices that the schedule brings and takes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from runtime_ext.call import Call
from runtime_ext.interface import Segment
from zcompiler.layout import ALIGNMENT
from zcompiler.lower.ranges import Range, Ranges
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.update import OPTIMIZER_WORK, SubGroup, subgroup_bytes, update_schedule
from zcompiler.schedule.model import Op, Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.training.registry import record_of
from zcompiler.training.resting import Record, Unit
from zcompiler.training.session import Session
from zcompiler.training.states import StateLayout, adopt_states, bare_copy, state_layout, step_without_hooks
from zcompiler.training.tensors import flat, flat_over, is_dense

# Slices that start at multiples of this many elements give bit for bit what the whole tensor gives: vector code
# treats a tail differently, and this is a multiple of every vector length times every unrolling.
SLICE = 16384


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter that this step updates."""

    p: torch.Tensor
    group: dict[str, Any]
    record: Record
    layout: StateLayout
    stored_grad: tuple[Segment, int] | None  # segment and slot, when the gradient rests in the store
    fresh: bool  # the optimizer has no state for it yet
    scalars: dict[str, Any]  # its other states (the step count) as they were: each slice starts from these


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `start` to `stop` of a parameter."""

    member: Member
    start: int
    stop: int

    def padded(self, itemsize: int) -> int:
        return -(-(self.stop - self.start) * itemsize // ALIGNMENT) * ALIGNMENT

    def range(self, segment: Segment, slot: int, itemsize: int) -> Range:
        return Range(segment, segment.offsets[slot] + self.start * itemsize, self.padded(itemsize))


class Update:
    """The members' update. `run` returns the parameters it updated; the rest is for the optimizer's own step."""

    def __init__(
        self, session: Session, optimizer: torch.optim.Optimizer, members: Sequence[tuple[dict[str, Any], torch.Tensor]]
    ) -> None:
        self.session, self.optimizer = session, optimizer
        self._layouts: dict[tuple[int, torch.dtype], StateLayout] = {}
        self.members = [m for group, p in members if (m := self._member(group, p)) is not None]

    def run(self) -> list[torch.Tensor]:
        if not self.members:
            return []
        units: dict[Unit, list[Member]] = {}
        for member in self.members:
            units.setdefault(member.record.unit, []).append(member)
        for m in self.members:
            if m.layout:
                adopt_states(self.session, m.record.unit, m.p, m.record.slot, m.layout, self.optimizer.state[m.p])
        size = self._subgroup_bytes(units)
        parts: dict[str, list[Part]] = {}
        for unit, members in units.items():
            pieces = _pieces(members, size)
            for i, piece in enumerate(pieces):
                parts[unit.name if len(pieces) == 1 else f"{unit.name}[{i}]"] = piece
        groups = [self._subgroup(name, piece) for name, piece in parts.items()]
        schedule = self.session.update_schedule(tuple(groups), lambda: self._schedule(groups))
        call = UpdateCall(self, parts, schedule, max(g.nbytes for g in groups))
        try:
            call.executor.run(schedule.regions, call)
        finally:
            call.close()
        # Autograd must refuse a backward whose forward saw the old values, as it would in memory.
        for m in self.members:
            torch.autograd.graph.increment_version(m.p)
        self.session.between_phases()
        return [m.p for m in self.members]

    def _member(self, group: dict[str, Any], p: torch.Tensor) -> Member | None:
        """None for what the optimizer's own step handles: nothing in the store, or a gradient of another form."""
        record, grad = record_of(p), p.grad
        store = self.session.store_tier
        if record is None or grad is None or not record.fits(p) or not record.at_home(p):
            return None
        homes = record.unit.homes
        if store not in (homes.params, homes.optimizer) or grad.layout is not torch.strided:
            return None
        if grad.dtype != p.dtype or grad.device != p.device:
            return None
        key = (id(group), p.dtype)
        if key not in self._layouts:
            self._layouts[key] = state_layout(self.optimizer, group, p.dtype)
        layout, state = self._layouts[key], self.optimizer.state.get(p, {})
        scalars = {k: v for k, v in state.items() if k not in layout}
        return Member(p, group, record, layout, _stored(record.unit, p, grad), not state, scalars)

    def _subgroup_bytes(self, units: dict[Unit, list[Member]]) -> int:
        store, held, moved = self.session.store_tier, 0, 0.0
        for unit, members in units.items():
            for m in members:
                size = m.p.numel() * m.p.element_size()
                states = len(m.layout)
                held += size * (
                    (unit.homes.params != store) + (m.stored_grad is None) + states * (unit.homes.optimizer != store)
                )
                moved = max(
                    moved,
                    (unit.homes.params == store)
                    + (m.stored_grad is not None)
                    + states * (unit.homes.optimizer == store),
                )
        homes = next(iter(units)).homes
        return subgroup_bytes(self.session.options.memory, held, homes, moved, OPTIMIZER_WORK)

    def _subgroup(self, name: str, piece: list[Part]) -> SubGroup:
        store, compute = self.session.store_tier, self.session.compute_tier
        stored = any(part.member.stored_grad is not None for part in piece)
        homes = replace(piece[0].member.record.unit.homes, grads=store if stored else compute)
        param = sum(part.padded(part.member.p.element_size()) for part in piece)
        grad = sum(
            part.padded(part.member.p.element_size())
            for part in piece
            if not stored or part.member.stored_grad is not None
        )
        state = sum(part.padded(d.itemsize) for part in piece for d in part.member.layout.values())
        return SubGroup(name, homes, param, grad, state)

    def _schedule(self, groups: Sequence[SubGroup]) -> Schedule:
        bare = update_schedule(groups, self.session.tiers, OPTIMIZER_WORK)
        ahead = max(g.nbytes for g in groups)
        return run_pipeline(bare, parse_pipeline(f"prefetch-reads{{bytes={format_bytes(ahead)}}}"))


class UpdateCall(Call):
    """Brings slices to the optimizer's own step."""

    def __init__(self, update: Update, parts: dict[str, list[Part]], schedule: Schedule, largest: int) -> None:
        # While one sub-group is updated and the next is read, the one before may still be on its way to the store.
        super().__init__(update.session.executor, schedule, lag=largest)
        self.update, self.parts = update, parts
        self.ranges = {name: ranges for n, piece in parts.items() for name, ranges in _ranges(n, piece)}

    def segment(self, value: str) -> Segment:
        return self.ranges[value]  # type: ignore[return-value]

    def compute(self, region: str, op: Op) -> None:
        name = region.removeprefix("update/")
        optimizer = self.update.optimizer
        slices = [_Slice(optimizer, part) for part in self.parts[name]]
        for value in op.reads:
            self._place(value, slices)
        small = bare_copy(optimizer)
        by_group: dict[int, list[_Slice]] = {}
        for s in slices:
            by_group.setdefault(id(s.part.member.group), []).append(s)
        for members in by_group.values():
            group = members[0].part.member.group
            small.param_groups.append({**group, "params": [s.parameter() for s in members]})
            small.state.update({s.q: s.state() for s in members if not s.part.member.fresh})
        step_without_hooks(small)
        for s in slices:
            s.keep(small.state.get(s.q, {}))

    def _place(self, value: str, slices: list[_Slice]) -> None:
        """Cut the buffer of a value into the slices' tensors, in the order in which `_ranges` laid them out."""
        buffer = self.env.get(value)
        if buffer is None:
            return
        kind, array, at = self.schedule.value(value).kind, buffer.array, 0  # type: ignore[attr-defined]

        def cut(part: Part, dtype: torch.dtype) -> torch.Tensor:
            nonlocal at
            size = (part.stop - part.start) * dtype.itemsize
            piece = flat_over(array[at : at + size], dtype)
            at += part.padded(dtype.itemsize)
            return piece

        for s in slices:
            dtype = s.part.member.p.dtype
            if kind == "state":
                for key, state_dtype in s.part.member.layout.items():
                    s.states[key] = cut(s.part, state_dtype)
            elif kind == "grad":
                if s.part.member.stored_grad is not None:
                    s.grad = cut(s.part, dtype)
            else:
                s.param = cut(s.part, dtype)


class _Slice:
    """One part's tensors during an update: over buffers where its kind rests in the store, else over the real ones."""

    def __init__(self, optimizer: torch.optim.Optimizer, part: Part) -> None:
        self.part, self.optimizer = part, optimizer
        self.param: torch.Tensor | None = None
        self.grad: torch.Tensor | None = None
        self.states: dict[str, torch.Tensor] = {}

    def parameter(self) -> torch.Tensor:
        """The slice as a parameter with its gradient."""
        member, cut = self.part.member, slice(self.part.start, self.part.stop)
        if self.param is None:
            self.param = flat(member.p)[cut]
        if self.grad is None:
            self.grad = flat(_like_parameter(member))[cut]
        self.q = torch.nn.Parameter(self.param)
        self.q.grad = self.grad
        return self.q

    def state(self) -> dict[str, Any]:
        """The optimizer's state for the slice."""
        member = self.part.member
        whole = self.optimizer.state[member.p]
        state: dict[str, Any] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in member.scalars.items()}
        for key in member.layout:
            if key not in self.states and key in whole:
                self.states[key] = flat(whole[key])[self.part.start : self.part.stop]
            if key in self.states:
                state[key] = self.states[key]
        return state

    def keep(self, state: dict[str, Any]) -> None:
        """Put what the step made where it belongs."""
        member = self.part.member
        if not state:
            return  # a look at `optimizer.state` would leave an empty entry there
        whole = self.optimizer.state[member.p]
        for key, value in state.items():
            if key not in member.layout:
                if self.part.stop == member.p.numel():
                    whole[key] = value
                continue
            target = self.states.get(key)
            if target is None:
                if key not in whole:
                    whole[key] = torch.empty_like(member.p, dtype=value.dtype, memory_format=torch.preserve_format)
                target = flat(whole[key])[self.part.start : self.part.stop]
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)


def _like_parameter(member: Member) -> torch.Tensor:
    """The gradient with its elements in the parameter's order."""
    grad = member.p.grad
    assert grad is not None
    if grad.stride() == member.p.stride() and is_dense(grad):
        return grad
    return torch.empty_like(member.p, memory_format=torch.preserve_format).copy_(grad)


def _stored(unit: Unit, p: torch.Tensor, grad: torch.Tensor) -> tuple[Segment, int] | None:
    """Where the store has a gradient, if it still is the tensor that backward made there and not a view of it."""
    if grad.shape != p.shape or grad.stride() != p.stride():
        return None
    address = grad.data_ptr()
    for pool in unit.gradients.values():
        for region in pool:
            for slot, look in enumerate(region.looks):
                array = look()
                if array is not None and array.ctypes.data == address:
                    return region.segment, slot
    return None


def _pieces(members: Sequence[Member], size: int) -> list[list[Part]]:
    """The members cut into parts, and parts put together to sub-groups of about `size` bytes of parameters."""
    pieces: list[list[Part]] = [[]]
    filled = 0
    for m in members:
        itemsize = m.p.element_size()
        longest = max(SLICE, size // itemsize // SLICE * SLICE)
        for start in range(0, m.p.numel(), longest):
            part = Part(m, start, min(start + longest, m.p.numel()))
            if filled and filled + part.padded(itemsize) > size:
                pieces.append([])
                filled = 0
            pieces[-1].append(part)
            filled += part.padded(itemsize)
    return pieces


def _ranges(name: str, piece: Sequence[Part]) -> list[tuple[str, Ranges]]:
    """Where the values of a sub-group rest in the store, part by part; states part by part and key by key."""
    params, grads, states = [], [], []
    for part in piece:
        m = part.member
        unit, slot, itemsize = m.record.unit, m.record.slot, m.p.element_size()
        if unit.parameters is not None:
            params.append(part.range(unit.parameters, slot, itemsize))
        if m.stored_grad is not None:
            grads.append(part.range(*m.stored_grad, itemsize))
        for key, dtype in m.layout.items():
            if key in unit.states:
                states.append(part.range(unit.states[key], slot, dtype.itemsize))
    found = [(name, params), (f"{name}:grad", grads), (f"{name}:state", states)]
    return [(value, Ranges(value, ranges)) for value, ranges in found if ranges]
