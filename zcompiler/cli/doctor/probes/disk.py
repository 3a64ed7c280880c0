"""A folder for the store, tried with files that have no name, so that nothing is left of them."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

from runtime_ext.nvme import StoreError, Syscalls
from runtime_ext.nvme.checks import check_directory, file_system
from runtime_ext.nvme.edits import notices_edits
from runtime_ext.nvme.files import open_anonymous
from zcompiler.cli.doctor.found import Disk

SIZES = (512, 1024, 2048, 4096)  # of direct transfers; the store's own are multiples of a page
REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)  # as the store understands it


def look_at_disk(path: Path, calls: Syscalls | None = None, mounts: Path = Path("/proc/self/mountinfo")) -> Disk:
    """Tries all that the store will do there. `mounts` is where the kernel lists file systems."""
    calls = calls or Syscalls()
    try:
        check_directory(path, mounts)
        status = calls.statvfs(path)
        kind = file_system(path.stat().st_dev, mounts)
        descriptor = open_anonymous(path, 0, calls)
    except StoreError as error:
        return Disk(path, error.strerror or str(error))
    except OSError as error:
        return Disk(path, f"no file can be made in {path} ({error.strerror}): name another directory")
    try:
        reserves, notices = _reserves(descriptor, calls), _notices(descriptor, calls)
    finally:
        os.close(descriptor)
    free = status.f_bavail * status.f_frsize
    try:
        alignment = _alignment(path, calls)
    except OSError as error:
        return Disk(path, f"direct I/O fails in {path} ({error.strerror}): name a directory on another disk", kind)
    return Disk(path, "", kind, free, _nameless(path, calls), reserves, alignment, notices)


def _reserves(descriptor: int, calls: Syscalls) -> str:
    try:
        calls.fallocate(descriptor, 0, mmap.PAGESIZE)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _notices(descriptor: int, calls: Syscalls) -> bool:
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return notices_edits(descriptor, calls)
    except OSError:  # no mapping, or no setting of times: not noticed either
        return False


def _nameless(path: Path, calls: Syscalls) -> bool:
    try:
        descriptor = calls.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE, 0o600)
    except OSError:
        return False
    os.close(descriptor)
    return True


def _alignment(path: Path, calls: Syscalls) -> int | None:
    """The smallest of `SIZES` in which bytes are written and read back directly; None where none is."""
    try:
        descriptor = open_anonymous(path, os.O_DIRECT, calls)
    except OSError as error:
        if error.errno in REFUSED:
            return None
        raise
    try:
        return next((size for size in SIZES if _goes_through(descriptor, size, calls)), None)
    finally:
        os.close(descriptor)


def _goes_through(descriptor: int, size: int, calls: Syscalls) -> bool:
    # Address, place and length are multiples of `size` and, for the smaller ones, of nothing larger.
    view = memoryview(mmap.mmap(-1, 4 * mmap.PAGESIZE))
    view[size : 2 * size] = b"z" * size
    try:
        if calls.pwritev(descriptor, [view[size : 2 * size]], size) != size:
            return False
        read = calls.preadv(descriptor, [view[3 * size : 4 * size]], size)
    except OSError as error:
        if error.errno in REFUSED:
            return False
        raise
    return read == size and bytes(view[3 * size : 4 * size]) == b"z" * size
