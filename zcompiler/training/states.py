"""The states of an elementwise optimizer: which it keeps, and where they rest in the store."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from runtime_ext.interface import Segment
from zcompiler.options import Options
from zcompiler.training.resting import Unit
from zcompiler.training.tensors import flat_over, strided

if TYPE_CHECKING:
    from zcompiler.training.session import Session

MASTER = "master"  # among a parameter's states: its value in the precision in which the optimizer works
_LOW = (torch.bfloat16, torch.float16)

StateLayout = Mapping[str, torch.dtype]

_PROBE = 2  # elements: enough to tell a state of the parameter's shape from a scalar


def bare_copy(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer of the same class and settings, without parameters and states."""
    copy = object.__new__(type(optimizer))
    copy.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k not in ("param_groups", "state")})
    copy.param_groups, copy.state = [], defaultdict(dict)
    return copy


def step_without_hooks(optimizer: Any) -> None:
    """The class's own step on what the optimizer holds; its hooks have run in the step that the user called."""
    type(optimizer).step.__wrapped__(optimizer)


@dataclass(frozen=True)
class StepForm:
    """What a step does beside changing parameters: which states of a parameter's shape it keeps, with their dtype,
    and whether it leaves another gradient behind than it found."""

    states: StateLayout
    edits_gradients: bool


def working_dtype(options: Options, dtype: torch.dtype) -> torch.dtype:
    """The precision in which parameters of this dtype are updated."""
    return torch.float32 if options.master and dtype in _LOW else dtype


def step_form(optimizer: torch.optim.Optimizer, group: dict[str, Any], dtype: torch.dtype) -> StepForm:
    """Found out by taking a step with this group's settings on a tiny parameter of the dtype in which the optimizer
    works: amsgrad, momentum, or the scale that a GradScaler hands to a fused step need no table."""
    probe = bare_copy(optimizer)
    q = torch.nn.Parameter(torch.zeros(_PROBE, dtype=dtype))
    q.grad = torch.ones_like(q)
    probe.param_groups = [{**group, "params": [q]}]
    if isinstance(optimizer, torch.optim.Adagrad):  # makes its states when it is constructed, not in a step
        probe.state[q] = {"step": torch.tensor(0.0), "sum": torch.zeros_like(q)}
    step_without_hooks(probe)
    made = probe.state[q].items()
    states = {k: v.dtype for k, v in made if isinstance(v, torch.Tensor) and v.shape == q.shape}
    return StepForm(states, not torch.equal(q.grad, torch.ones_like(q)))


@dataclass(eq=False)
class StateHome:
    """Room for one state of a unit's parameters. A slot is free when nobody holds a tensor over it: two optimizers
    may keep the same state for the same parameter, and a user what one of them has saved."""

    segment: Segment
    looks: list[weakref.ref | None]

    def holds(self, slot: int, value: object) -> bool:
        """Whether this tensor lies in the slot."""
        look = self.looks[slot]
        array = look() if look is not None else None
        return array is not None and isinstance(value, torch.Tensor) and array.ctypes.data == value.data_ptr()

    def free(self, slot: int) -> bool:
        look = self.looks[slot]
        return look is None or look() is None


def stored_state(unit: Unit, slot: int, key: str, value: object) -> Segment | None:
    """Where the store has this state of a parameter, if it does."""
    return next((home.segment for home in unit.states.get(key, ()) if home.holds(slot, value)), None)


def adopt_states(
    session: Session, unit: Unit, p: torch.Tensor, slot: int, layout: StateLayout, state: dict[str, Any]
) -> None:
    """Give every elementwise state of a parameter its home, with its elements in the parameter's order.

    With its home in the store, `state` holds tensors mapped from there afterwards; what is elsewhere (made in the
    constructor, loaded from a checkpoint) is taken over. Where there was none, the mapped tensor only says where the
    first step's result goes.
    """
    for key, dtype in layout.items():
        value = state.get(key)
        if unit.homes.optimizer != session.store_tier:
            if isinstance(value, torch.Tensor) and (value.stride(), value.dtype) != (p.stride(), dtype):
                state[key] = torch.empty_strided(p.shape, p.stride(), dtype=dtype).copy_(value)
            elif value is None and key == MASTER:
                state[key] = torch.empty_like(p, dtype=dtype)
            continue
        if isinstance(value, torch.Tensor) and value.stride() == p.stride() and stored_state(unit, slot, key, value):
            continue
        homes = unit.states.setdefault(key, [])
        home = next((h for h in homes if h.free(slot)), None)
        if home is None:
            # Bytes of state for each of parameter; the unit's other parameters may have another dtype, and this factor.
            factor = -(-dtype.itemsize // p.element_size())
            sizes = [size * factor for size in unit.sizes]
            segment = session.create_segment(f"{unit.name}.{key}", "state", sizes)
            home = StateHome(segment, [None] * len(sizes))
            homes.append(home)
        array = home.segment.map(slot)[: p.numel() * dtype.itemsize]
        home.looks[slot] = weakref.ref(array)
        mapped = strided(flat_over(array, dtype), p)
        if isinstance(value, torch.Tensor):
            mapped.copy_(value)
            home.segment.drop_pages()
        state[key] = mapped
