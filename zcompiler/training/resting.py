"""Parameters at rest: their storage is mapped from the store's file, so a look from outside is simply right.

The graph never reads through the mapping: it gathers by direct I/O into the arena. Both see the same file, and the
system keeps them coherent as long as they do not overlap in time, which the schedule takes care of.

Users set `p.data`, and may hold on to what they set it to or to what it was. Whoever else looks into a storage must go
on seeing what ordinary memory would show: a parameter is not moved away from a storage that it shares, and nothing is
written to a home that it has left while others look at it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from runtime_ext.interface import Segment
from zcompiler.logs import stage
from zcompiler.plan.plan import Homes
from zcompiler.schedule.sizes import format_bytes
from zcompiler.torch_compat.tensors import storage_sharers
from zcompiler.training.observed import observe
from zcompiler.training.registry import forget, known_parameters, record_of, remember
from zcompiler.training.tensors import over, raw

if TYPE_CHECKING:
    from zcompiler.training.low import LowCopy
    from zcompiler.training.residence import GradientRegion
    from zcompiler.training.session import Session
    from zcompiler.training.states import StateHome
    from zcompiler.training.statistics import Ledger


@dataclass(eq=False)
class Unit:
    """What rests together: the parameters of one bucket, and what the optimizer and backward keep for them."""

    name: str
    session: Session
    homes: Homes
    sizes: tuple[int, ...]  # bytes of each parameter
    itemsizes: tuple[int, ...]
    parameters: Segment | None = None  # None: they rest in ordinary memory
    states: dict[str, list[StateHome]] = field(default_factory=dict)
    gradients: dict[str, list[GradientRegion]] = field(default_factory=dict)
    low: dict[torch.dtype, LowCopy] = field(default_factory=dict)  # where graphs ask for them in a narrower type
    trained: bool = True  # False: only graphs that make no gradients know it

    def decided(self) -> tuple[tuple[str, str], ...]:
        """The homes that further graphs find decided, by kind."""
        return self.homes.decided(self.trained, self.parameters is not None)

    def resting_in(self, tier: str, states: int) -> int:
        """Bytes that the unit holds in a tier between steps, with `states` bytes of state for each of parameters."""
        return sum(self.sizes) * self.homes.held(tier, states, self.trained)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Record:
    """One parameter: which slot of which unit, and where its mapped storage lies."""

    unit: Unit
    slot: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    address: int = 0
    mapped: weakref.ref | None = None  # lives as long as anybody looks at the slot through the mapping

    def fits(self, p: torch.Tensor) -> bool:
        """Whether the parameter still has the elements, and their order, that the slot was made for."""
        return (p.dtype, p.shape, p.stride()) == (self.dtype, self.shape, self.strides)

    def at_home(self, p: torch.Tensor) -> bool:
        return self.unit.parameters is None or p.data_ptr() == self.address

    def may_come_home(self, p: torch.Tensor) -> bool:
        """Whether the slot may take what the parameter holds now."""
        return self.at_home(p) or self.mapped is None or self.mapped() is None


def take_over(session: Session, name: str, parameters: Sequence[torch.Tensor], homes: Homes, trained: bool) -> Unit:
    """Let `parameters` rest at their home as one unit; in the store their storage becomes a mapping of its file.
    `trained`: there may be gradients of them.

    OSError when the store has no space; nothing has changed then.
    """
    sizes = tuple(p.numel() * p.element_size() for p in parameters)
    itemsizes = tuple(p.element_size() for p in parameters)
    unit = Unit(session.unit_name(name), session, homes, sizes, itemsizes, trained=trained)
    if homes.params == session.store_tier:
        unit.parameters = segment = session.create_segment(unit.name, "param", sizes)
        with stage(f"{unit.name}: {format_bytes(sum(sizes))} of parameters to {session.store_tier}"):
            session.write_now(segment, [raw(p) for p in parameters])
    for slot, p in enumerate(parameters):
        record = Record(unit, slot, p.dtype, p.shape, p.stride())
        remember(p, record)
        if unit.parameters is not None:
            _map(p, record)
        if session.store_tier in (homes.params, homes.grads, homes.optimizer):
            observe(p)
    session.units.add(unit)
    # A unit dies with the last of its parameters; its files go then, not when the process ends.
    weakref.finalize(unit, _close_all, session.ledger, unit.parameters, unit.states, unit.gradients, unit.low)
    weakref.finalize(unit, session.activations.trim)
    return unit


def bring_home(p: torch.Tensor, record: Record) -> None:
    """The user replaced the storage (`p.data = ...`): take its content over and map again."""
    assert record.unit.parameters is not None
    over(record.unit.parameters.map(record.slot), p).copy_(p.detach())
    record.unit.parameters.drop_pages()
    _map(p, record)


def give_back(p: torch.Tensor) -> None:
    """Bring a parameter back to ordinary memory and forget it."""
    record = record_of(p)
    if record is None:
        return
    if record.unit.parameters is not None and record.at_home(p):
        with torch.inference_mode(False), torch.no_grad():
            p.data = p.data.clone(memory_format=torch.preserve_format)
    forget(p)


def _map(p: torch.Tensor, record: Record) -> None:
    """Let the parameter look at its slot, which holds its values; not if that would part it from what it shares."""
    assert record.unit.parameters is not None
    if _is_shared(p):
        name = record.unit.name.partition(":")[0]
        record.unit.session.note(
            f"a parameter of {name} shares its storage with another tensor, so it stays there and every "
            "call copies it to the store: set p.data to a clone, or p itself where a weight is to be tied"
        )
        return
    array = record.unit.parameters.map(record.slot)
    # Under inference_mode the new storage would be an inference tensor, which autograd refuses for ever after.
    with torch.inference_mode(False), torch.no_grad():
        p.data = over(array, p)
    record.address, record.mapped = p.data_ptr(), weakref.ref(array)


def _is_shared(p: torch.Tensor) -> bool:
    """Whether others would miss what happens to a copy of the storage. Parts of one vector that is nobody's but the
    parameters' are not shared, as long as they do not overlap."""
    sharers = storage_sharers(p)
    if sharers == 0 or p.untyped_storage().nbytes() == p.nbytes:
        return sharers > 0
    storage = p.untyped_storage().data_ptr()
    parts = sorted((q.data_ptr(), q.nbytes) for q in known_parameters() if q.untyped_storage().data_ptr() == storage)
    return len(parts) <= sharers or any(at + size > after for (at, size), (after, _) in pairwise(parts))


def _close_all(
    ledger: Ledger,
    parameters: Segment | None,
    states: dict[str, list[StateHome]],
    gradients: dict[str, list[GradientRegion]],
    low: dict[torch.dtype, LowCopy],
) -> None:
    rooms = [room.segment for pools in (gradients, states) for pool in pools.values() for room in pool]
    rooms += [copy.segment for copy in low.values()]
    for segment in (*rooms, *([parameters] if parameters is not None else [])):
        ledger.retire(segment)
        segment.close()
