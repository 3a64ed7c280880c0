"""One file of the store: direct reads and writes cut into pieces, and the shared mapping for looks from outside."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from runtime_ext.interface import Work
from runtime_ext.nvme.checks import StoreError
from runtime_ext.nvme.edits import EditWatch
from runtime_ext.nvme.files import Syscalls
from runtime_ext.nvme.fork import make_private
from zcompiler.layout import layout

CHUNK = 4 << 20


class FileSegment:
    """A slot for each tensor of one unit and kind, in one anonymous file under `path`. Made by `NvmeStore.create`.

    Reads and writes may run on any threads; `bytes_read` and `bytes_written` count what really moved. The generation
    rises when the last piece of a write is done.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        sizes: tuple[int, ...],
        *,
        path: Path,
        descriptor: int,
        direct: bool,
        alignment: int,
        calls: Syscalls,
        on_close: Callable[[FileSegment], None],
    ) -> None:
        self.name, self.kind, self.sizes, self.path = name, kind, sizes, path
        self.offsets, self.nbytes = layout(sizes, alignment)
        self.generation = self.bytes_read = self.bytes_written = 0
        self._descriptor, self._direct, self._alignment, self._calls = descriptor, direct, alignment, calls
        self._on_close = on_close
        self._watch = EditWatch(calls)
        self._lock = threading.Lock()
        self._users, self._closed = 0, False
        self._mapping: mmap.mmap | None = None

    def read(self, into: np.ndarray, start: int = 0) -> Work:
        """Work that fills `into` (uint8, page-aligned) from byte `start` on.

        ValueError when the range is not aligned or not inside the segment. The work raises StoreError naming segment,
        path, offset, wanted and got.
        """
        self._check("read", into, start)
        pieces = tuple(partial(self._read_piece, view, at) for view, at in _chunks(into, start))
        return Work(f"read({self.name})", into.nbytes, pieces)

    def write(self, source: np.ndarray, start: int = 0) -> Work:
        """Work that puts `source` (uint8, page-aligned) at byte `start`. Raises like `read`."""
        self._check("write", source, start)
        chunks = list(_chunks(source, start)) or [(memoryview(b""), start)]
        left = [len(chunks)]
        pieces = tuple(partial(self._write_piece, view, at, left) for view, at in chunks)
        return Work(f"write({self.name})", source.nbytes, pieces)

    def map(self, slot: int) -> np.ndarray:
        """The slot's exact bytes as a writable shared mapping, uint8, which lives as long as the array does."""
        offset, size = self.offsets[slot], self.sizes[slot]
        if size == 0:
            return np.empty(0, np.uint8)
        with self._descriptor_in_use() as descriptor, self._lock:
            if self._mapping is None:
                try:
                    self._mapping = mmap.mmap(descriptor, self.nbytes, mmap.MAP_SHARED)
                except OSError as error:
                    raise StoreError(
                        error.errno, f"cannot map {self.nbytes} B of {self._place()}: {error.strerror}"
                    ) from error
            return np.frombuffer(self._mapping, np.uint8, size, offset)

    def drop_pages(self) -> None:
        """Give back the memory that looks through the mapping have filled; the data stays, written ones included."""
        with self._descriptor_in_use() as descriptor:
            if self._mapping is not None:
                self._mapping.madvise(mmap.MADV_DONTNEED)
            # Only clean pages can be dropped, and what was written through the mapping is dirty.
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def watch(self) -> None:
        """Notice from now on who writes through the mapping. What was written there before goes to the disk now."""
        with self._descriptor_in_use() as descriptor:
            self._watch.start(descriptor)

    def edited(self) -> bool:
        """Whether somebody wrote through the mapping since the last `watch`; True before the first. Reads and the
        segment's own writes do not count."""
        with self._descriptor_in_use() as descriptor:
            return self._watch.edited(descriptor)

    def after_fork_in_child(self) -> None:
        """Cut the child's looks at the file loose from the parent's."""
        if self._mapping is not None and not self._closed:
            make_private(self._mapping, self._descriptor)

    def close(self) -> None:
        """Give the file up, once the pieces under way are done. Arrays handed out by `map` stay valid. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._mapping = None
            if self._users == 0:
                os.close(self._descriptor)
        self._on_close(self)

    @contextmanager
    def _descriptor_in_use(self) -> Iterator[int]:
        # A descriptor number is used anew once closed: a late write would land in someone else's file.
        with self._lock:
            if self._closed:
                raise StoreError(errno.EBADF, f"{self._place()} is closed: keep the store open while lanes use it")
            self._users += 1
        try:
            yield self._descriptor
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    os.close(self._descriptor)

    def _read_piece(self, view: memoryview, at: int) -> None:
        with self._descriptor_in_use() as descriptor:
            self._transfer("read", self._calls.preadv, descriptor, view, at)
            if not self._direct:
                os.posix_fadvise(descriptor, at, len(view), os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.bytes_read += len(view)

    def _write_piece(self, view: memoryview, at: int, left: list[int]) -> None:
        with self._descriptor_in_use() as descriptor, self._watch.own_write(descriptor):
            self._transfer("write", self._calls.pwritev, descriptor, view, at)
            if not self._direct:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, at, len(view), os.POSIX_FADV_DONTNEED)
        with self._lock:
            self.bytes_written += len(view)
            left[0] -= 1
            self.generation += left[0] == 0

    def _transfer(
        self, verb: str, call: Callable[[int, list[memoryview], int], int], descriptor: int, view: memoryview, at: int
    ) -> None:
        got = 0
        while got < len(view):
            try:
                moved = call(descriptor, [view[got:]], at + got)
            except OSError as error:
                raise self._failed(verb, error.errno, error.strerror, at, len(view), got) from error
            got += moved
            # Direct I/O cannot go on from an unaligned byte, and a call that moves nothing would loop for ever.
            if moved <= 0 or (got < len(view) and got % self._alignment):
                raise self._failed(verb, errno.EIO, f"short {verb}", at, len(view), got)

    def _failed(self, verb: str, code: int | None, why: str | None, at: int, wanted: int, got: int) -> StoreError:
        return StoreError(
            code or errno.EIO, f"{verb} of {self._place()} at offset {at}: wanted {wanted} B, got {got} B ({why})"
        )

    def _place(self) -> str:
        return f"segment {self.name} ({self.kind}) in {self.path}"

    def _check(self, verb: str, array: np.ndarray, start: int) -> None:
        if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(
                f"{verb} of {self._place()}: wants a contiguous 1-d uint8 array, not {array.dtype} {array.shape}"
            )
        if start < 0 or start + array.nbytes > self.nbytes:
            raise ValueError(
                f"{verb} of {self._place()}: bytes {start} to {start + array.nbytes} are outside its {self.nbytes} B"
            )
        if start % self._alignment or array.nbytes % self._alignment or array.ctypes.data % self._alignment:
            raise ValueError(
                f"{verb} of {self._place()}: start {start}, size {array.nbytes} and address {array.ctypes.data:#x} "
                f"must be multiples of {self._alignment}"
            )


def _chunks(array: np.ndarray, start: int) -> Iterator[tuple[memoryview, int]]:
    view = array.data
    for at in range(0, array.nbytes, CHUNK):
        yield view[at : at + CHUNK], start + at
