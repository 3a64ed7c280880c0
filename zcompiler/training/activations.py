"""Room in the store for what forwards save: segments that are used again, so that neither files nor bytes grow with
the steps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence

from runtime_ext.interface import Segment
from zcompiler.training.statistics import Ledger

Create = Callable[[str, str, Sequence[int]], Segment]


class ActivationRoom:
    """Segments of kind "act", each lent to one call at a time. Safe to use from several threads."""

    def __init__(self, create: weakref.WeakMethod[Create], ledger: Ledger, users: Collection[object]) -> None:
        """`create` makes a segment; `users` are those for whom room is kept: without any, nothing is."""
        self._create, self._ledger, self._users = create, ledger, users
        self._lock = threading.RLock()  # a call may die, and give back, while its thread is in here
        self._free: list[Segment] = []

    def lend(self, nbytes: int, to: object) -> Segment:
        """A segment of at least `nbytes` bytes that is `to`'s until it dies. StoreError when there is no space."""
        segment = self._take(nbytes)
        if segment is None:
            create = self._create()
            assert create is not None, "a session outlives its calls"
            segment = create("saved", "act", (nbytes,))
        weakref.finalize(to, self._back, segment).atexit = False
        return segment

    def trim(self) -> None:
        """Give up what nobody uses."""
        with self._lock:
            free, self._free = self._free, []
        for segment in free:
            self._close(segment)

    def _take(self, nbytes: int) -> Segment | None:
        """The smallest free one that is large enough. If there is none, the largest makes room for a new one."""
        with self._lock:
            fitting = [s for s in self._free if s.nbytes >= nbytes]
            chosen = min(fitting, key=_size) if fitting else max(self._free, key=_size, default=None)
            if chosen is not None:
                self._free.remove(chosen)
        if chosen is not None and not fitting:
            self._close(chosen)
            return None
        return chosen

    def _back(self, segment: Segment) -> None:
        with self._lock:
            self._free.append(segment)
        if not self._users:
            self.trim()

    def _close(self, segment: Segment) -> None:
        self._ledger.retire(segment)
        segment.close()


def _size(segment: Segment) -> int:
    return segment.nbytes
