"""The managed memory of a tier: one reservation, cut into page-aligned buffers by best fit."""

from __future__ import annotations

import bisect
import contextlib
import mmap
import threading

import numpy as np

PAGE = mmap.PAGESIZE


class HostBuffer:
    """A page-aligned piece of a HostArena; `array` is uint8 and `nbytes` long, and empty once freed."""

    def __init__(self, arena: HostArena, array: np.ndarray, start: int, taken: int) -> None:
        self.array, self.nbytes = array, array.nbytes
        self._arena, self._start, self._taken = arena, start, taken
        self._freed = False

    def free(self) -> None:
        """Give the piece back. Idempotent. Other views of the bytes must not be used from here on."""
        self._arena._give_back(self)


class HostArena:
    """`capacity` bytes of memory reserved at once, touched only as used. Safe to use from several threads.

    `in_use` and `peak` count bytes in whole pages, pieces outside the reservation included (`overflowed` counts those
    alone). The memory is not inherited by a forked child: a page shared after a fork would be copied under a running
    direct read, and the read would fill the wrong copy.
    """

    def __init__(self, tier: str, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"arena {tier}: capacity {capacity} is negative")
        self.tier = tier
        self.capacity = -(-capacity // PAGE) * PAGE
        self.in_use = self.peak = self.overflowed = 0
        self._touched = 0  # bytes of the reservation that were in use at once since the last trim
        self._lock = threading.Lock()
        self._map = _reserve(self.capacity) if self.capacity else None
        self._bytes = np.frombuffer(self._map, np.uint8) if self._map is not None else np.empty(0, np.uint8)
        self._base = self._bytes.ctypes.data
        self._starts = [0] if self.capacity else []  # of the free extents, rising
        self._sizes = {0: self.capacity} if self.capacity else {}
        self._outside: dict[int, int] = {}  # address -> bytes of the pieces outside the reservation

    def alloc(self, nbytes: int, overflow: bool = False) -> HostBuffer:
        """A buffer of `nbytes` bytes with unspecified content.

        When no free extent is that long: with `overflow` a mapping of its own, which counts like any other piece; else
        MemoryError naming what was wanted, what is in use, the capacity and the longest free extent.
        """
        taken = -(-nbytes // PAGE) * PAGE
        with self._lock:
            start = self._take(taken)
            if start >= 0:
                buffer = HostBuffer(self, self._bytes[start : start + nbytes], start, taken)
            elif overflow:
                self._trim(keep=0)  # what the free extents hold would come on top
                mapping = _reserve(taken)
                array = np.frombuffer(mapping, np.uint8, nbytes)
                self._outside[array.ctypes.data] = taken
                self.overflowed += taken
                buffer = HostBuffer(self, array, -1, taken)
            else:
                longest = max(self._sizes.values(), default=0)
                raise MemoryError(
                    f"arena {self.tier}: {nbytes} B wanted, {self.in_use} B of {self.capacity} B are in use and the "
                    f"longest free piece has {longest} B: raise memory, or hold less at a time"
                )
            self.in_use += taken
            self.peak = max(self.peak, self.in_use)
            self._touched = max(self._touched, self.in_use - self.overflowed)
            return buffer

    @property
    def idle(self) -> int:
        """Bytes of free extents that were used before and not given back since; behind a trim up to `keep` too many."""
        with self._lock:
            return self._touched - (self.in_use - self.overflowed)

    def owns(self, address: int) -> bool:
        """Whether a data pointer lies in the reservation or in a piece outside it that is in use."""
        if self._base <= address < self._base + self.capacity:
            return True
        with self._lock:
            return any(base <= address < base + size for base, size in self._outside.items())

    def trim(self, keep: int = 0) -> None:
        """Give the memory of free extents back to the system, but for the first `keep` bytes of them."""
        with self._lock:
            self._trim(keep)

    def reset_peak(self) -> None:
        with self._lock:
            self.peak = self.in_use

    def close(self) -> None:
        """Let the memory go; what is still in use lives on until its arrays die. Idempotent."""
        with self._lock:
            self._map, self._bytes, self._starts, self._sizes = None, np.empty(0, np.uint8), [], {}

    def _take(self, size: int) -> int:
        """The start of the shortest free extent that holds `size`, cut off from it; -1 when there is none."""
        if size == 0:
            return 0
        fitting = [(length, start) for start, length in self._sizes.items() if length >= size]
        if not fitting:
            return -1
        length, start = min(fitting)
        self._starts.remove(start)
        del self._sizes[start]
        if length > size:
            self._insert(start + size, length - size)
        return start

    def _insert(self, start: int, size: int) -> None:
        bisect.insort(self._starts, start)
        self._sizes[start] = size

    def _give_back(self, buffer: HostBuffer) -> None:
        with self._lock:
            if buffer._freed:
                return
            buffer._freed = True
            self.in_use -= buffer._taken
            if buffer._start < 0:
                del self._outside[buffer.array.ctypes.data]
                self.overflowed -= buffer._taken
            elif buffer._taken and self._map is not None:
                self._merge(buffer._start, buffer._taken)
            buffer.array = np.empty(0, np.uint8)

    def _merge(self, start: int, size: int) -> None:
        at = bisect.bisect(self._starts, start)
        after = self._starts[at] if at < len(self._starts) else -1
        if start + size == after:
            del self._starts[at]
            size += self._sizes.pop(after)
        before = self._starts[at - 1] if at else -1
        if at and before + self._sizes[before] == start:
            self._sizes[before] += size
        else:
            self._insert(start, size)

    def _trim(self, keep: int) -> None:
        if self._map is None:
            return
        wanted = keep
        for start in self._starts:
            size = self._sizes[start]
            kept = min(size, -(-keep // PAGE) * PAGE)
            keep -= kept
            if size > kept:
                self._map.madvise(mmap.MADV_DONTNEED, start + kept, size - kept)
        used = self.in_use - self.overflowed
        self._touched = used + min(self._touched - used, wanted)


def _reserve(size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_DONTFORK)
    # What was trimmed is faulted in again: by 2 MiB at a time where the kernel can, and it need not be able to.
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
