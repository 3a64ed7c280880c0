"""Whether anybody outside could tell that an update is late, in a way that looks at parameters do not show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from zcompiler.torch_compat.tensors import storage_is_shared
from zcompiler.training.members import Member
from zcompiler.training.observed import ObservedParameter, ObservedStates


def seen_from_outside(optimizer: torch.optim.Optimizer, members: Sequence[Member]) -> bool:
    """Whether something refers to tensors of the update past the objects that wait for it: an alias of a weight, a
    gradient or a state that the user kept, or the scale of a GradScaler, which lives for one step only."""
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return True
    if type(optimizer.state) is not ObservedStates:
        return True
    alone = _Alone()
    for m in members:
        if type(m.p) is not ObservedParameter or alone.shares(m.p):
            return True
        if m.grad is not None and (sys.getrefcount(m.grad) > alone.gradient or alone.shares(m.grad)):
            return True
        states = m.states
        if states and sys.getrefcount(states) > alone.states:
            return True
        for key in m.layout:
            state = states.get(key)
            if state is not None and (sys.getrefcount(state) > alone.state or alone.shares(state)):
                return True
    return False


class _Alone:
    """How many references Python counts to things that only their owners and one look refer to."""

    def __init__(self) -> None:
        q = torch.nn.Parameter(torch.zeros(1))
        q.grad = torch.zeros(1)
        holder: Any = Member(q, {}, None, {}, q.grad, None, {}, False, {}, False)  # type: ignore[arg-type]
        self.gradient = sys.getrefcount(holder.grad)
        holder.states = {"state": torch.zeros(1)}
        table = {0: holder.states}  # as in the optimizer
        states = holder.states
        self.states = sys.getrefcount(states)
        state = states.get("state")
        self.state = sys.getrefcount(state)
        self.storage = sys.getrefcount(q.untyped_storage())
        del table

    def shares(self, t: torch.Tensor) -> bool:
        return storage_is_shared(t) or sys.getrefcount(t.untyped_storage()) > self.storage
