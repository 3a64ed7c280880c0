"""What one call of a schedule holds: the values that are live, the events it issued, and what the lowering supplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from runtime_ext.interface import Buffer, Event, Work
from zcompiler.schedule.flow import Place, form_bytes
from zcompiler.schedule.model import Op, Schedule

if TYPE_CHECKING:
    from runtime_ext.executor import Executor

LaneEvent = tuple[str, Event]


class Stored(Protocol):
    """What a value is in the store: a Segment, or parts of some seen as one. Hashed by identity."""

    nbytes: int

    def read(self, into: np.ndarray, start: int = 0) -> Work: ...

    def write(self, source: np.ndarray, start: int = 0) -> Work: ...


class Call:
    """One use of a schedule, from its first region to `close`. Subclass it and supply `segment` and `compute`.

    `env` holds the values regions read: a Buffer for whatever an op of the schedule brought to the compute tier, and
    for an activation what `compute` put there. It lasts over several `Executor.run`s, so that a unit gathered in
    forward can be used in backward. One thread at a time.
    """

    def __init__(self, executor: Executor, schedule: Schedule, lag: int | None = None) -> None:
        """`lag`: how many bytes may be released and still in use by a transfer, before the next op waits; None: any."""
        self.executor, self.schedule, self.lag = executor, schedule, lag
        self.compute_tier = schedule.compute_tier.name
        self.env: dict[str, object] = {}
        self.events: dict[str, LaneEvent] = {}  # event name -> lane, event
        self.pins: dict[Place, list[LaneEvent]] = {}  # what is still reading or filling a buffer
        self._buffers: dict[Place, Buffer] = {}

    def segment(self, value: str) -> Stored:
        """Where the value rests in the store: the same object for the same bytes, as transfers of it are ordered."""
        raise NotImplementedError

    def compute(self, region: str, op: Op) -> None:
        """Run the region: find `op.reads` in `env`, put `op.writes` there. Called on the thread of `Executor.run`."""
        raise NotImplementedError

    def resting(self, value: str) -> Buffer:
        """Where a value rests that is at home in host memory and moves to or from the device."""
        raise LookupError(f"{value} is not in an arena, and this call knows no place where it rests")

    def arriving(self, value: str, buffer: Buffer) -> Event | None:
        """The event of somebody else who fills the buffer of a read; None: the store is to be read."""
        return None

    def release(self, value: str) -> None:
        """Let a value go that is no Buffer of the schedule."""
        self.env.pop(value, None)

    def outside(self) -> int:
        """Bytes of the compute tier that the call holds and no arena counts."""
        return 0

    def alloc(self, value: str, nbytes: int | None = None, form: str = "full") -> Buffer:
        """A buffer in the compute tier for a value that `compute` makes; the schedule's release frees it."""
        size = self.size(value, form) if nbytes is None else nbytes
        buffer = self.executor.alloc(self.compute_tier, size)
        self.hold(Place(value, form, self.compute_tier), buffer)
        return buffer

    @contextmanager
    def scratch(self, nbytes: int) -> Iterator[Buffer]:
        """A buffer in the compute tier for the length of a `with`."""
        buffer = self.executor.alloc(self.compute_tier, nbytes)
        try:
            yield buffer
        finally:
            buffer.free()

    def close(self) -> None:
        """Wait for what is under way, then free everything left. Raises the first error nobody has seen. Idempotent."""
        error = self.abandon()
        if error is not None:
            raise error

    def abandon(self) -> BaseException | None:
        """Like `close`, but gives the error back."""
        raised = [self.executor.drain(lane, event, name) for name, (lane, event) in self.events.items()]
        error = next((one for one in raised if one is not None), None)
        self.executor.reap()
        for buffer in self._buffers.values():
            buffer.free()
        for table in (self._buffers, self.events, self.pins, self.env):
            table.clear()
        return error

    def size(self, value: str, form: str) -> int:
        return form_bytes(self.schedule.value(value), form)

    def hold(self, place: Place, buffer: Buffer) -> None:
        """Keep a buffer until the schedule releases `place`. RuntimeError, and the buffer freed, if one is there."""
        if place in self._buffers:
            buffer.free()
            raise RuntimeError(f"{place} is there already: two ops make it without a release between them")
        self._buffers[place] = buffer
        if place.tier == self.compute_tier:
            self.env[place.value] = buffer

    def held(self, place: Place) -> Buffer | None:
        return self._buffers.get(place)

    def drop(self, place: Place) -> tuple[Buffer | None, list[LaneEvent]]:
        """Forget a buffer; gives it back with what still uses it."""
        buffer = self._buffers.pop(place, None)
        if buffer is not None and self.env.get(place.value) is buffer:
            del self.env[place.value]
        return buffer, self.pins.pop(place, [])


def settle(event: Event) -> BaseException | None:
    """Wait until the event is done even if interrupted (Ctrl-C), and give back what was raised meanwhile."""
    error: BaseException | None = None
    while True:
        try:
            event.wait()
            return error
        except BaseException as raised:
            error = raised
            if event.done() or isinstance(raised, Exception):
                return error
