"""Anonymous files: opened so that they have no name, and the leftovers of a kill in the one window where they do."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX, SUFFIX = "zinf-", ".tmp"

# What the kernel and the file systems answer when they do not know O_TMPFILE.
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Syscalls:
    """The calls a store makes, so that a test can hand it a disk that fails in a chosen way."""

    open: Callable[..., int] = os.open
    preadv: Callable[[int, Any, int], int] = os.preadv
    pwritev: Callable[[int, Any, int], int] = os.pwritev
    fallocate: Callable[[int, int, int], None] = os.posix_fallocate
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    fstat: Callable[[int], os.stat_result] = os.fstat
    utime: Callable[..., None] = os.utime


def open_anonymous(path: Path, flags: int, calls: Syscalls) -> int:
    """A descriptor of a new file in `path` that has no name, 0600. OSError when the file system cannot."""
    flags |= os.O_RDWR | os.O_CLOEXEC
    try:
        return calls.open(path, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    named = path / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
    # The lock must be there before any flag the file system may refuse: a refused open can leave the name behind.
    guard = calls.open(named, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _lock(guard)
        return calls.open(named, flags, 0o600)
    finally:
        named.unlink(missing_ok=True)
        os.close(guard)


def reclaim(path: Path) -> list[Path]:
    """Remove what a kill between making a file and taking its name away left in `path`; returns what was removed.

    A file whose lock is held belongs to a living process and stays. Each removal is logged to `zinf.store`.
    """
    removed = []
    for left in sorted(path.glob(f"{PREFIX}*{SUFFIX}")):
        try:
            descriptor = os.open(left, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile, or another user's
        try:
            if _lock(descriptor):
                left.unlink(missing_ok=True)
                removed.append(left)
        finally:
            os.close(descriptor)
    if removed:
        logging.getLogger("zinf.store").warning(
            "removed %d file(s) that a killed process left: %s", len(removed), ", ".join(map(str, removed))
        )
    return removed


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
