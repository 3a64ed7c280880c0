"""Where parameters and gradients of live arguments rest: takes over new ones, finds replaced ones, hands out room."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from runtime_ext.interface import Buffer, Event, Segment
from zcompiler.analyse.buckets import Bucket
from zcompiler.capture.pieces import Tile
from zcompiler.errors import DoesNotFit
from zcompiler.layout import layout
from zcompiler.lower.call import GradientHome
from zcompiler.lower.ranges import Range, Ranges
from zcompiler.plan.plan import Homes, Placement, describe
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.training.late import Place, Read
from zcompiler.training.low import freshen, low_segment
from zcompiler.training.registry import forget, record_of, running_updates, settle
from zcompiler.training.resting import Record, bring_home, take_over
from zcompiler.training.session import Session
from zcompiler.training.tensors import over


def slot_range(record: Record, segment: Segment, bucket: Bucket) -> Range:
    """The padded slot of a parameter in one of its unit's segments, or the rows of it that the bucket holds."""
    start = segment.offsets[record.slot]
    if bucket.tile is not None:
        return Range(segment, start + bucket.tile.first * (bucket.low or record.dtype).itemsize, bucket.nbytes)
    following = (*segment.offsets, segment.nbytes)[record.slot + 1]
    return Range(segment, start, following - start)


def _place(record: Record, at: int, tile: Tile | None) -> Place:
    elements = record.shape.numel()
    if tile is None:
        return Place(at, 0, elements)
    return Place(at, tile.first, tile.first + elements // record.shape[0] * tile.length)


@dataclass(eq=False)
class GradientRegion:
    """Room for gradients; free again when nobody holds a tensor over it, aliases that users made included."""

    segment: Segment
    looks: list[weakref.ref]
    slots: dict[int, int] = field(default_factory=dict)  # address -> which of the looks

    def free(self) -> bool:
        return all(look() is None for look in self.looks)


@dataclass(frozen=True, slots=True)
class _Located:
    """Where a bucket was found last. Weak: a compiled graph outlives the parameters it last ran with, and must not keep
    their files."""

    records: list[weakref.ref[Record]]
    ranges: Ranges | None
    bucket: Bucket


class LiveResidence:
    """The Residence of one graph."""

    def __init__(self, session: Session, placement: Placement, planned: int, trains: bool) -> None:
        """`planned`: bytes that a step with one model takes in the compute tier at most; `trains`: with a backward."""
        self.session, self.placement, self.planned, self.trains = session, placement, planned, trains
        self._known: dict[str, _Located] = {}

    def admit(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether some of them are new. DoesNotFit if there is no room for those: torch runs a graph with every model
        of the same form, and the plan was made for the first of them only."""
        if all(record_of(p) is not None for p in parameters):
            return False
        limit = self.session.options.memory
        most = self.planned + self.session.resting_in_memory(parameters)
        if most > limit:
            raise DoesNotFit(
                f"memory={format_bytes(limit)} is too small for one more model of a form that is compiled already: "
                f"together with what others hold it needs {format_bytes(most)} ({describe(self.placement)}). "
                f"Set memory to at least {-(-most >> 20)}MiB, or let more rest on {self.session.store_tier} "
                "(option place)",
                most,
            )
        return True

    def locate(self, bucket: Bucket, parameters: Sequence[torch.Tensor]) -> Ranges | None:
        for p in parameters:
            record = record_of(p)
            if record is not None and not (record.fits(p) and record.may_come_home(p)):
                forget(p)  # its old slot is no home for it
        records = [self._record(bucket, parameters, p) for p in parameters]
        for p, record in zip(parameters, records, strict=True):
            if not record.at_home(p):
                bring_home(p, record)
        known = self._known.get(bucket.name)
        if known is None or [look() for look in known.records] != records:
            ranges = None
            if any(r.unit.parameters is not None for r in records):
                ranges = Ranges(bucket.name, [slot_range(r, self._stored(r, bucket.low), bucket) for r in records])
            known = self._known[bucket.name] = _Located([weakref.ref(r) for r in records], ranges, bucket)
        if bucket.low is not None:
            freshen(records, bucket.low)
        return known.ranges

    def gradients(self, bucket: Bucket, value: str, parameters: dict[int, torch.Tensor]) -> GradientHome:
        first = record_of(next(iter(parameters.values())))
        assert first is not None
        pool = first.unit.gradients.setdefault(value, [])
        sizes = tuple(p.numel() * p.element_size() for p in parameters.values())
        region = next((r for r in pool if r.segment.sizes == sizes and r.free()), None)
        if region is None:
            region = GradientRegion(self.session.create_segment(value, "grad", sizes), [])
            pool.append(region)
        arrays = [region.segment.map(i) for i in range(len(sizes))]
        region.looks = [weakref.ref(a) for a in arrays]
        region.slots = {a.ctypes.data: i for i, a in enumerate(arrays)}
        offsets = dict(zip(parameters, layout(sizes)[0], strict=True))
        tensors = {slot: over(a, p) for (slot, p), a in zip(parameters.items(), arrays, strict=True)}
        return GradientHome(Ranges(value, [Range(region.segment, 0, region.segment.nbytes)]), tensors, offsets)

    def room(self, nbytes: int, call: object) -> Segment:
        return self.session.activations.lend(nbytes, call)

    def begins(self, schedule: Schedule, phase: str, trains: bool) -> None:
        if phase == "fwd" and trains:
            parts = [name for name, known in self._known.items() if known.bucket.tile is not None]
            self.session.uses.note(schedule, {name: known.records for name, known in self._known.items()}, parts)
        if running_updates() and not self.session.uses.expected(schedule):
            settle()  # the plan did not count on both
        for update in list(running_updates()) if phase == "bwd" else ():
            update.compute()  # backward adds to gradients, and the update may still have to read them

    def arriving(self, bucket: str, buffer: Buffer) -> Event | None:
        ranges = self._known[bucket].ranges
        assert ranges is not None

        def read(after: Sequence[Event]) -> Event:
            return self.session.runtime.submit("nvme_read", ranges.read(buffer.array), after)

        return self._bring(bucket, buffer.array, read)

    def settled(self, bucket: str) -> None:
        if self._known[bucket].ranges is None:
            self._bring(bucket)
        else:
            settle()  # they will be read from the store, so it is not enough that they are computed

    def _bring(self, bucket: str, buffer: np.ndarray | None = None, read: Read | None = None) -> Event | None:
        known = self._known[bucket]
        for update in list(running_updates()):
            found = zip((look() for look in known.records), known.bucket.offsets, strict=True)
            places = {r: _place(r, at, known.bucket.tile) for r, at in found if r is not None}
            event = update.bring(places, buffer, read, known.bucket.low)
            if event is not None:
                return event
        return None

    def _record(self, bucket: Bucket, parameters: Sequence[torch.Tensor], p: torch.Tensor) -> Record:
        record, homes = record_of(p), self.placement[bucket.name]
        if record is None or self._wants(record, homes):
            # Those of the bucket that nobody knows yet become a unit together.
            new = [q for q in parameters if (r := record_of(q)) is None or self._wants(r, homes)]
            take_over(self.session, bucket.rests_as, new, homes, self.trains)
            record = record_of(p)
        assert record is not None
        return record

    def _wants(self, record: Record, homes: Homes) -> bool:
        """Whether what rests in memory is to be placed anew: it has to go, or is trained for the first time."""
        first = self.trains and not record.unit.trained
        return record.unit.parameters is None and (homes.params == self.session.store_tier or first)

    def _stored(self, record: Record, low: torch.dtype | None) -> Segment:
        if record.unit.parameters is None:
            raise LookupError(f"a parameter of {record.unit.name} rests in memory, others of its bucket do not")
        return record.unit.parameters if low is None else low_segment(record, low)
