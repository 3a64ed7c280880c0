"""When free memory goes back to the system. Glibc and the arena keep what was freed, and that counts against the limit;
but what is given back is faulted in again, which costs a step a good part of its time where nobody needs the room."""

from __future__ import annotations

from collections.abc import Callable

from zcompiler.free_memory import anonymous_memory
from zcompiler.torch_compat.running import trim_memory

# How much must have been freed for a trim to be worth some milliseconds.
LEAST = 96 << 20
# What an arena keeps of its free pages when it gives them back, as all of them would be faulted in again.
KEPT = 32 << 20
# Either is at most this part of the limit: both come on top of what is planned, and with them what the C library cannot
# give back has to stay below a tenth.
PART = 40
# The part of the limit that a process may hold before it gives back what is free.
FULL = 0.7
# The part of what is else worth a trim for which one is made where the next region would not find room otherwise.
BRIM = 1 / 8


class Trimming:
    """For one session. `resident` tells the bytes that the process holds, None where the system does not say: then it
    gives back all that it can, as often as it is worth it. `trim` does so."""

    def __init__(
        self,
        limit: int,
        resident: Callable[[], int | None] = anonymous_memory,
        trim: Callable[[], None] = trim_memory,
    ) -> None:
        self._limit, self._resident, self._trim = limit, resident, trim
        self._least = min(LEAST, limit // PART)
        self.kept = min(KEPT, limit // PART)  # bytes, of an arena
        self.others: int | None = None  # bytes that the limit does not count: interpreter, torch, the user's own
        self._freed = 0
        self._lowest: int | None = None  # bytes that the process held at the least since the last trim

    def freed(self, nbytes: int) -> None:
        """Told of memory that was given back to the allocator; trims where it would count too much.

        Nobody tells of what a region takes and gives back by itself, which glibc puts now here and now there; so growth
        of the process counts like what was freed.
        """
        self._freed += nbytes
        now = self._resident()
        if max(self._freed, self._grown(now)) > self._least and self.full():
            self.trim()

    def crowded(self, nbytes: int) -> bool:
        """Whether the process would hold more than the limit if it took so many bytes more."""
        return self._crowded(self._resident(), nbytes)

    def before(self, nbytes: int) -> None:
        """Told before so many bytes are taken; trims where that would be over the limit, if there is anything free."""
        now = self._resident()
        if self._crowded(now, nbytes) and max(self._freed, self._grown(now)) > BRIM * self._least:
            self.trim()

    def too_idle(self, nbytes: int) -> bool:
        """Whether so many free bytes of an arena have to go back, all but `kept` of them."""
        return nbytes - self.kept > self._least and self.full()

    def full(self) -> bool:
        """Whether the process holds so much that what is free has to go."""
        if self.others is None or (now := self._resident()) is None:
            return True
        return now - self.others > FULL * self._limit

    def all_of(self, held: int) -> None:
        """Trim; `held` is what the limit counts then, so that the rest belongs to others."""
        self.trim()
        if self._lowest is not None:
            self.others = self._lowest - held

    def trim(self) -> None:
        self._freed = 0
        self._trim()
        self._lowest = self._resident()

    def _crowded(self, now: int | None, nbytes: int) -> bool:
        return self.others is not None and now is not None and now - self.others + nbytes > self._limit

    def _grown(self, now: int | None) -> int:
        """Bytes by which the process has grown since a trim, or since it was smallest."""
        if now is None or self._lowest is None:
            return 0
        self._lowest = min(self._lowest, now)
        return now - self._lowest
