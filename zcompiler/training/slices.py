"""An update's compute: the optimizer's own step, on slices that the schedule brings and takes away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from runtime_ext.call import Call
from runtime_ext.executor import Executor
from runtime_ext.interface import Segment
from zcompiler.schedule.model import Op, Schedule
from zcompiler.training.members import Part, low_values, ranges_of
from zcompiler.training.states import MASTER, bare_copy, step_without_hooks
from zcompiler.training.tensors import flat, flat_over

Updated = Callable[[Part, torch.Tensor], None]


class UpdateCall(Call):
    """Brings the parts of each sub-group to the step of `bare`, an optimizer without parameters. `updated` is told each
    part's new values."""

    def __init__(
        self,
        executor: Executor,
        bare: Any,
        parts: dict[str, list[Part]],
        schedule: Schedule,
        lag: int,
        updated: Updated | None = None,
    ) -> None:
        # While one sub-group is updated and the next is read, the one before may still be on its way to the store.
        super().__init__(executor, schedule, lag=lag)
        self.bare, self.parts, self.updated = bare, parts, updated
        self.ranges = {name: ranges for n, piece in parts.items() for name, ranges in ranges_of(n, piece)}

    def segment(self, value: str) -> Segment:
        return self.ranges[value]  # type: ignore[return-value]

    def compute(self, region: str, op: Op) -> None:
        slices = [_Slice(part) for part in self.parts[region.removeprefix("update/")]]
        for value in op.reads:
            self._place(value, slices)
        small = bare_copy(self.bare)
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
            assert s.param is not None
            if self.updated is not None:
                self.updated(s.part, s.param)
            if s.part.is_last:
                s.part.member.grad = None
        for value, dtype in low_values(region.removeprefix("update/"), [s.part for s in slices]).items():
            self._cast(value, dtype, slices)

    def _cast(self, value: str, dtype: torch.dtype, slices: list[_Slice]) -> None:
        """New values in a narrower type, for the schedule to write."""
        array, at = self.alloc(value).array, 0
        for s in slices:
            if dtype in s.part.member.low:
                assert s.param is not None
                size = (s.part.stop - s.part.start) * dtype.itemsize
                flat_over(array[at : at + size], dtype).copy_(s.param)
                at += s.part.padded(dtype.itemsize)

    def _place(self, value: str, slices: list[_Slice]) -> None:
        """Cut the buffer of a value into the slices' tensors, in the order in which `ranges_of` laid them out."""
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

    def __init__(self, part: Part) -> None:
        self.part = part
        self.param: torch.Tensor | None = None
        self.grad: torch.Tensor | None = None
        self.states: dict[str, torch.Tensor] = {}

    def parameter(self) -> torch.Tensor:
        """The slice as a parameter with its gradient."""
        member, cut = self.part.member, slice(self.part.start, self.part.stop)
        if self.param is None:
            self.param = flat(member.p)[cut]
        if self.grad is None:
            self.grad = flat(member.gradient())[cut]
        value, grad = self.param, self.grad
        if member.master != "no":
            value = self._master(cut)
            grad = grad.to(value.dtype)
        self.q = torch.nn.Parameter(value)
        self.q.grad = grad
        return self.q

    def _master(self, cut: slice) -> torch.Tensor:
        """The value in the precision in which it is updated: what the last step left of it, but where the parameter is
        not that, rounded, the user has changed it."""
        member, low = self.part.member, self.param
        assert low is not None
        master = self.states.get(MASTER)
        if master is None:
            master = flat(member.states[MASTER])[cut]
        if member.master == "new":
            return master.copy_(low)
        edited = master.to(low.dtype) != low
        return master.copy_(torch.where(edited, low.to(master.dtype), master)) if edited.any() else master

    def state(self) -> dict[str, Any]:
        """The optimizer's state for the slice."""
        member = self.part.member
        whole = member.states
        state: dict[str, Any] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in member.scalars.items()}
        for key in member.layout:
            if key == MASTER:
                continue
            if key not in self.states and key in whole:
                self.states[key] = flat(whole[key])[self.part.start : self.part.stop]
            if key in self.states:
                state[key] = self.states[key]
        return state

    def keep(self, state: dict[str, Any]) -> None:
        """Put what the step made where it belongs."""
        member = self.part.member
        if member.master != "no":
            assert self.param is not None
            self.param.copy_(self.q.detach())
        whole = member.states
        for key, value in state.items():
            if key not in member.layout:
                if self.part.is_last:
                    whole[key] = value
                continue
            target = self.states.get(key)
            if target is None:
                if key not in whole:
                    whole[key] = torch.empty_like(member.p, dtype=value.dtype, memory_format=torch.preserve_format)
                target = flat(whole[key])[self.part.start : self.part.stop]
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)
