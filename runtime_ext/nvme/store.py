"""A store whose files vanish with the process; `docs/design/0002-volatile-store.md` says why."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path

from runtime_ext.nvme.checks import StoreError, check_directory
from runtime_ext.nvme.edits import notices_edits
from runtime_ext.nvme.files import Syscalls, open_anonymous, reclaim
from runtime_ext.nvme.segment import FileSegment
from zcompiler.layout import layout


class NvmeStore:
    """Where shards rest, on one or more directories; each segment lies whole on the path that holds the fewest bytes.

    `alignment` is in bytes, a multiple of the page size. StoreError when a path cannot hold a store. `fallbacks` says
    in words what a file system could not do and what is done instead.
    """

    tier = "nvme"

    def __init__(
        self, paths: Sequence[Path | str], alignment: int = mmap.PAGESIZE, calls: Syscalls | None = None
    ) -> None:
        if isinstance(paths, str | Path) or not paths:
            raise StoreError(errno.EINVAL, f"a store wants a list of one or more directories, not {paths!r}")
        if alignment <= 0 or alignment % mmap.PAGESIZE:
            raise ValueError(f"alignment {alignment} is not a multiple of the page size, {mmap.PAGESIZE}")
        self.paths = tuple(Path(path) for path in paths)
        self.alignment = alignment
        self.fallbacks: list[str] = []
        self._calls = calls or Syscalls()
        self._lock = threading.Lock()
        self._segments: set[FileSegment] = set()
        self._held = dict.fromkeys(self.paths, 0)
        self._notices_edits: bool | None = None
        for path in self.paths:
            check_directory(path)
            reclaim(path)
        self._direct = {path: self._takes_direct_io(path) for path in self.paths}
        me = weakref.ref(self)  # a hook cannot be taken back, so it must not keep the store alive
        os.register_at_fork(after_in_child=lambda: _after_fork_in_child(me()))

    def create(self, name: str, kind: str, sizes: Sequence[int]) -> FileSegment:
        """A segment with a slot of each of `sizes` bytes, its space taken now, its content zero.

        StoreError naming path, wanted, free and remedy when the space is not there; nothing stays taken then.
        """
        if any(size < 0 for size in sizes):
            raise ValueError(f"segment {name} ({kind}): sizes must not be negative, got {list(sizes)}")
        nbytes = layout(sizes, self.alignment)[1]
        with self._lock:
            path = min(self.paths, key=self._held.__getitem__)
            segment = FileSegment(
                name,
                kind,
                tuple(sizes),
                path=path,
                descriptor=self._allocate(path, name, nbytes),
                direct=self._direct[path],
                alignment=self.alignment,
                calls=self._calls,
                on_close=self._forget,
            )
            self._held[path] += nbytes
            self._segments.add(segment)
        return segment

    def notices_edits(self) -> bool:
        """Whether `Segment.edited` can be told on all paths; each is tried when this is first asked."""
        if self._notices_edits is None:
            self._notices_edits = all(map(self._keeps_time, self.paths))
        return self._notices_edits

    def close(self) -> None:
        """Give every segment up; their space is free at once, or when the last mapped array dies. Idempotent."""
        for segment in list(self._segments):
            segment.close()

    def _forget(self, segment: FileSegment) -> None:
        with self._lock:
            self._segments.discard(segment)
            self._held[segment.path] -= segment.nbytes

    def _allocate(self, path: Path, name: str, nbytes: int) -> int:
        # Asked first, because the file system would fill the disk to the brim before it refused.
        free = self._free(path)
        if nbytes > free:
            raise self._full(path, name, nbytes, free)
        descriptor = self._open(path, os.O_DIRECT if self._direct[path] else 0)
        try:
            if nbytes:
                self._calls.fallocate(descriptor, 0, nbytes)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full(path, name, nbytes, self._free(path)) from error
            raise StoreError(
                error.errno,
                f"cannot take {nbytes} B for segment {name} in {path} ({error.strerror}; {free} B are free): "
                "name another directory, or lift the limit on file sizes",
            ) from error
        return descriptor

    def _free(self, path: Path) -> int:
        status = self._calls.statvfs(path)
        return status.f_bavail * status.f_frsize

    def _full(self, path: Path, name: str, wanted: int, free: int) -> StoreError:
        return StoreError(
            errno.ENOSPC,
            f"no space for segment {name} in {path}: wanted {wanted} B, {free} B are free, {wanted - free} B are "
            "missing: free space there, or add a directory on another disk",
        )

    def _open(self, path: Path, flags: int) -> int:
        try:
            return open_anonymous(path, flags, self._calls)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise StoreError(
                    errno.EMFILE,
                    f"{len(self._segments)} segments are open and the process may open no more files: "
                    "raise its limit (ulimit -n)",
                ) from error
            raise StoreError(
                error.errno, f"cannot make a file in {path} ({error.strerror}): name another directory"
            ) from error

    def _takes_direct_io(self, path: Path) -> bool:
        try:
            self._probe(path)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            said = f"{path} refuses direct I/O: reads and writes go through the page cache and drop it, which is slower"
            self.fallbacks.append(said)
            warnings.warn(said, RuntimeWarning, stacklevel=3)
            return False
        return True

    def _keeps_time(self, path: Path) -> bool:
        descriptor = self._allocate(path, "of a trial", self.alignment)
        try:
            return notices_edits(descriptor, self._calls)
        finally:
            os.close(descriptor)

    def _probe(self, path: Path) -> None:
        # Some file systems take the flag and refuse the first transfer, so one is made.
        descriptor = self._open(path, os.O_DIRECT)
        try:
            page = memoryview(mmap.mmap(-1, self.alignment))
            self._calls.pwritev(descriptor, [page], 0)
        finally:
            os.close(descriptor)


def _after_fork_in_child(store: NvmeStore | None) -> None:
    for segment in list(store._segments) if store is not None else ():
        segment.after_fork_in_child()
