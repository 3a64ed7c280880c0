"""Copies of parameters in a narrower type, beside the values that users see: what graphs under autocast gather.

A copy is made from the value when a graph asks for it, and made again when somebody may have changed the value since:
the store tells who wrote through its mappings, which all looks from outside go through. Our own update writes the copy
beside the value, where a graph has asked for it since the update before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from runtime_ext.interface import Segment
from zcompiler.analyse.sizes import short_name
from zcompiler.layout import ALIGNMENT
from zcompiler.training.registry import settle
from zcompiler.training.tensors import flat_over

if TYPE_CHECKING:
    from zcompiler.training.members import Member
    from zcompiler.training.resting import Record, Unit

PIECE = 4 << 20  # bytes of values that are cast at once


@dataclass(eq=False)
class LowCopy:
    """A unit's parameters in one narrower type, each in the slot of its number.

    `fresh`: slots that hold the value, or will, once the update is done that is under way. `asked`: slots that graphs
    have asked for since the last update.
    """

    segment: Segment
    fresh: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)


def low_segment(record: Record, dtype: torch.dtype) -> Segment:
    """Where this parameter's unit has its copies of this type; made if there is none, OSError if there is no space."""
    unit = record.unit
    if dtype not in unit.low:
        sizes = [size // old * dtype.itemsize for size, old in zip(unit.sizes, unit.itemsizes, strict=True)]
        name = f"{unit.name}:{short_name(dtype)}"
        unit.low[dtype] = LowCopy(unit.session.create_segment(name, "param", sizes))
    return unit.low[dtype].segment


def freshen(records: Sequence[Record], dtype: torch.dtype) -> None:
    """Make the copies of these parameters anew where they may not be the value, in pieces, and wait."""
    _doubt_edited(r.unit for r in records)
    if any(r.slot not in r.unit.low[dtype].fresh for r in records):
        settle()  # the values are about to be read, and an update may still have to write them
    for r in records:
        low = r.unit.low[dtype]
        low.asked.add(r.slot)
        if r.slot not in low.fresh:
            _make(r, low, dtype)
            low.fresh.add(r.slot)


def asked_for(record: Record) -> tuple[torch.dtype, ...]:
    """The types in which graphs have asked for this parameter since the last update."""
    return tuple(dtype for dtype, low in record.unit.low.items() if record.slot in low.asked)


def begin_update(members: Sequence[Member]) -> None:
    """An update of these will write new values, and the copies that it has asked for; others are made when needed."""
    _doubt_edited(m.record.unit for m in members)
    for m in members:
        for dtype, low in m.record.unit.low.items():
            low.asked.discard(m.record.slot)
            if dtype in m.low:
                low.fresh.add(m.record.slot)
            else:
                low.fresh.discard(m.record.slot)


def doubt(members: Iterable[Member]) -> None:
    """An update of these failed half way."""
    for m in members:
        for low in m.record.unit.low.values():
            low.fresh.discard(m.record.slot)


def _doubt_edited(units: Iterable[Unit]) -> None:
    """What users wrote may be anywhere in a unit's values."""
    for unit in dict.fromkeys(units):
        if unit.low and unit.parameters is not None and unit.parameters.edited():
            unit.parameters.watch()
            for low in unit.low.values():
                low.fresh.clear()


def _make(record: Record, low: LowCopy, dtype: torch.dtype) -> None:
    session, values, slot = record.unit.session, record.unit.parameters, record.slot
    assert values is not None
    runtime = session.runtime
    size, ratio = values.sizes[slot], record.dtype.itemsize // dtype.itemsize
    most = session.staged(PIECE)
    piece = min(most, _padded(size))
    source, target = (session.executor.alloc(session.compute_tier, n) for n in (piece, _padded(piece // ratio)))
    try:
        for at in range(0, size, most):
            wide = min(most, size - at)
            narrow = wide // ratio
            runtime.submit("nvme_read", values.read(source.array[: _padded(wide)], values.offsets[slot] + at)).wait()
            flat_over(target.array[:narrow], dtype).copy_(flat_over(source.array[:wide], record.dtype))
            place = low.segment.offsets[slot] + at // ratio
            runtime.submit("nvme_write", low.segment.write(target.array[: _padded(narrow)], place)).wait()
    finally:
        source.free()
        target.free()


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
