"""Lane, event, arena, store and peers that take no time and no memory: they only say when something would be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runtime_ext.interface import Event, Work
from zcompiler.layout import layout


class VirtualClock:
    """Seconds since the start; only waiting and computing move it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class VirtualEvent:
    """Work that is done at `end`; waiting for it moves the clock there."""

    def __init__(self, clock: VirtualClock, end: float) -> None:
        self._clock, self.end = clock, end

    def done(self) -> bool:
        return self._clock.now >= self.end

    def wait(self) -> None:
        self._clock.now = max(self._clock.now, self.end)


class VirtualLane:
    """A queue that moves `rate` bytes a second, one piece of work at a time; `traced` is told label, start and end."""

    def __init__(
        self, name: str, clock: VirtualClock, rate: float, traced: Callable[[str, str, float, float], None]
    ) -> None:
        if rate <= 0:
            raise ValueError(f"lane {name}: {rate} bytes a second would never end")
        self.name = name
        self._clock, self._rate, self._traced = clock, rate, traced
        self._free_at = self._busy = 0.0

    def submit(self, work: Work, after: Sequence[Event] = ()) -> VirtualEvent:
        ends = [event.end for event in after if isinstance(event, VirtualEvent)]
        start = max(self._clock.now, self._free_at, *ends)
        end = start + work.nbytes / self._rate
        self._free_at = end
        self._busy += end - start
        self._traced(self.name, work.label, start, end)
        return VirtualEvent(self._clock, end)

    def busy_seconds(self) -> float:
        return self._busy

    def close(self) -> None:
        return


class VirtualBuffer:
    """A count of bytes. `array` has the right length and no memory, and cannot be written."""

    def __init__(self, arena: VirtualArena, nbytes: int) -> None:
        self.nbytes = nbytes
        self.array = np.broadcast_to(np.zeros(1, np.uint8), nbytes)
        self._arena: VirtualArena | None = arena

    def free(self) -> None:
        if self._arena is not None:
            self._arena.in_use -= self.nbytes
            self._arena = None


class VirtualArena:
    """Counts bytes exactly, without pages. `capacity` None is unlimited."""

    def __init__(self, tier: str, capacity: int | None) -> None:
        self.tier, self.capacity = tier, capacity
        self.in_use = self.peak = 0

    def alloc(self, nbytes: int, overflow: bool = False) -> VirtualBuffer:
        if self.capacity is not None and self.in_use + nbytes > self.capacity and not overflow:
            raise MemoryError(
                f"arena {self.tier}: {nbytes} B wanted, {self.in_use} B of {self.capacity} B are in use: "
                "raise memory, or hold less at a time"
            )
        self.in_use += nbytes
        self.peak = max(self.peak, self.in_use)
        return VirtualBuffer(self, nbytes)

    def owns(self, address: int) -> bool:
        return False

    @property
    def idle(self) -> int:
        return 0

    def trim(self, keep: int = 0) -> None:
        """Free bytes are not there in the first place."""

    def reset_peak(self) -> None:
        self.peak = self.in_use

    def close(self) -> None:
        return


class VirtualSegment:
    """Bytes at rest that are counted and never there: mapping them is refused."""

    def __init__(self, name: str, kind: str, sizes: tuple[int, ...], alignment: int) -> None:
        self.name, self.kind, self.sizes = name, kind, sizes
        self.offsets, self.nbytes = layout(sizes, alignment)
        self.generation = self.bytes_read = self.bytes_written = 0

    def read(self, into: np.ndarray, start: int = 0) -> Work:
        self.bytes_read += into.nbytes
        return Work(f"read({self.name})", into.nbytes)

    def write(self, source: np.ndarray, start: int = 0) -> Work:
        self.bytes_written += source.nbytes
        self.generation += 1
        return Work(f"write({self.name})", source.nbytes)

    def map(self, slot: int) -> np.ndarray:
        raise RuntimeError(f"segment {self.name} is virtual: there is nothing to look at")

    def drop_pages(self) -> None:
        return

    def watch(self) -> None:
        return

    def edited(self) -> bool:
        return False

    def close(self) -> None:
        return


class VirtualStore:
    """A disk without an end."""

    def __init__(self, tier: str, alignment: int = 1) -> None:
        self.tier, self.alignment = tier, alignment

    def create(self, name: str, kind: str, sizes: Sequence[int]) -> VirtualSegment:
        return VirtualSegment(name, kind, tuple(sizes), self.alignment)

    def notices_edits(self) -> bool:
        return True

    def close(self) -> None:
        return


class VirtualPeers:
    """Ranks that all do the same at the same time; a collective moves what one rank gets or gives."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def all_gather(self, shard: np.ndarray, full: np.ndarray) -> Work:
        return Work("all_gather", full.nbytes - shard.nbytes)

    def reduce_scatter(self, full: np.ndarray, shard: np.ndarray) -> Work:
        return Work("reduce_scatter", full.nbytes - shard.nbytes)
