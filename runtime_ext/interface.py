"""What the executor and the training part ask of a runtime; the real parts and the virtual one implement it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Work:
    """Something a lane does: `pieces` may run in any order on any thread of the lane (none of them on a virtual
    lane, which only takes the time that `nbytes` need). `label` is the event's name, for errors and traces."""

    label: str
    nbytes: int
    pieces: tuple[Callable[[], None], ...] = ()


class Event(Protocol):
    """One piece of work, done or not."""

    def done(self) -> bool: ...

    def wait(self) -> None:
        """Return when the work is done. Raises the error the work raised, with the work's label in its notes."""
        ...


class Lane(Protocol):
    """An ordered queue: work starts in the order of `submit`, once its own `after` events are done."""

    name: str

    def submit(self, work: Work, after: Sequence[Event] = ()) -> Event: ...

    def busy_seconds(self) -> float:
        """Seconds in which this lane had work in progress, since it was made."""
        ...

    def close(self) -> None:
        """Finish what was submitted, then stop. Idempotent."""
        ...


class Buffer(Protocol):
    """A piece of an arena: page-aligned bytes that direct I/O may use."""

    nbytes: int
    array: np.ndarray  # uint8, `nbytes` long

    def free(self) -> None:
        """Give the piece back. Idempotent."""
        ...


class Arena(Protocol):
    """Memory of one tier that the schedule manages."""

    tier: str
    in_use: int
    peak: int

    @property
    def capacity(self) -> int | None:
        """Bytes; None: unlimited."""
        ...

    @property
    def idle(self) -> int:
        """About the bytes that are free and that the system has not got back."""
        ...

    def alloc(self, nbytes: int, overflow: bool = False) -> Buffer:
        """A buffer of `nbytes`. MemoryError (what, how much is in use, the capacity) when it cannot be had.

        With `overflow` a piece that fits nowhere in the reservation is taken outside it, and counted like any other.
        """
        ...

    def owns(self, address: int) -> bool:
        """Whether a data pointer lies in this arena."""
        ...

    def trim(self, keep: int = 0) -> None:
        """Give free memory back to the system, but for `keep` bytes of it."""
        ...

    def reset_peak(self) -> None: ...

    def close(self) -> None: ...


class Segment(Protocol):
    """One file of a store: one unit and one kind of state, a slot for each tensor.

    Slots start at multiples of the store's alignment; `nbytes` is the sum of the padded slots. `start` and `nbytes`
    of a read or write are multiples of the alignment. The generation rises with each write.
    """

    name: str
    kind: str
    nbytes: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    generation: int
    bytes_read: int
    bytes_written: int

    def read(self, into: np.ndarray, start: int = 0) -> Work:
        """Work that fills `into` (uint8, page-aligned) from byte `start` on. A short read or an I/O error is an OSError
        naming path, offset, wanted and got."""
        ...

    def write(self, source: np.ndarray, start: int = 0) -> Work: ...

    def map(self, slot: int) -> np.ndarray:
        """The slot's exact bytes as a writable shared mapping, uint8. Keeps the mapping alive as long as it lives."""
        ...

    def drop_pages(self) -> None:
        """Give back the memory that looks through the mapping have filled; the data stays."""
        ...

    def watch(self) -> None:
        """Notice from now on who writes through the mapping."""
        ...

    def edited(self) -> bool:
        """Whether somebody did since then; True if nobody watched. Only where the store notices edits."""
        ...

    def close(self) -> None:
        """Give the file up. Arrays handed out by `map` stay valid."""
        ...


class Store(Protocol):
    """Where shards rest."""

    tier: str
    alignment: int

    def create(self, name: str, kind: str, sizes: Sequence[int]) -> Segment:
        """Reserve space up front. OSError (path, wanted, free, remedy) when it is not there."""
        ...

    def notices_edits(self) -> bool:
        """Whether `Segment.edited` can tell."""
        ...

    def close(self) -> None: ...


class Peers(Protocol):
    """The other ranks: collectives as work for the comm lane."""

    rank: int
    world: int

    def all_gather(self, shard: np.ndarray, full: np.ndarray) -> Work: ...

    def reduce_scatter(self, full: np.ndarray, shard: np.ndarray) -> Work: ...
