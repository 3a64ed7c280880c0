"""Whether somebody wrote to a file of the store through a mapping that was handed out, however that was done.

The kernel sets a file's time of modification at the first write to each clean page of a shared mapping. So the time is
set to 0 and the pages are made clean; whatever time is found later, if it is not 0, is that of an edit. Reads leave no
trace. Nothing in this process has to be asked: a numpy view, compiled code and a pointer kept in C are all noticed.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runtime_ext.nvme.files import Syscalls


class EditWatch:
    """Of one file. The store's own writes, made inside `own_write`, are no edits. Safe to use from several threads."""

    def __init__(self, calls: Syscalls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._started, self._edited, self._writers = False, True, 0

    def start(self, descriptor: int) -> None:
        """Count edits from now on."""
        with self._lock:
            # In this order: what is written in between to a page that is not clean yet leaves no trace, but it is there
            # for whoever reads the file after this.
            self._calls.utime(descriptor, ns=(0, 0))
            os.fdatasync(descriptor)
            self._started, self._edited = True, False

    def edited(self, descriptor: int) -> bool:
        """Whether there was an edit since the last `start`; True before the first."""
        with self._lock:
            self._look(descriptor)
            return self._edited

    @contextmanager
    def own_write(self, descriptor: int) -> Iterator[None]:
        with self._lock:
            self._look(descriptor)
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1
                if self._started and not self._writers:
                    self._calls.utime(descriptor, ns=(0, 0))

    def _look(self, descriptor: int) -> None:
        if not self._edited and not self._writers:
            self._edited = self._calls.fstat(descriptor).st_mtime_ns != 0


def notices_edits(descriptor: int, calls: Syscalls) -> bool:
    """Whether the file system of this open file, which is a page long at least, keeps time in this way; tried out."""
    watch = EditWatch(calls)
    with mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED) as mapping:
        for number in (1, 2):  # the second time, the page was written before
            watch.start(descriptor)
            before = mapping[0], watch.edited(descriptor)
            mapping[0] = number
            if before[1] or not watch.edited(descriptor):
                return False
    return True
