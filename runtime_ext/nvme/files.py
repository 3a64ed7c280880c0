"""Anonymous files: opened so that they have no name, and the leftovers of a kill in the one window where they do."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"zinf-[0-9a-f]{16}\.tmp")

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
    named = path / f"zinf-{secrets.token_hex(8)}.tmp"
    # The lock must be there before any flag the file system may refuse: a refused open can leave the name behind.
    guard = calls.open(named, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _lock(guard)
        # Not by its name: who cleans up between these lines may have taken it.
        return calls.open(f"/proc/self/fd/{guard}", flags, 0o600)
    finally:
        named.unlink(missing_ok=True)
        os.close(guard)


@dataclass(frozen=True, slots=True)
class Swept:
    """Files that killed processes left in a folder, and those like them that living ones use."""

    left: tuple[Path, ...] = ()
    in_use: tuple[Path, ...] = ()


def sweep(folder: Path, names: re.Pattern[str] = _NAME, only_empty: bool = True, remove: bool = True) -> Swept:
    """Remove the files in `folder` that have such a name and whose lock nobody holds; by default those that a kill
    between making a file of the store and taking its name away left, which are empty.

    Links are not followed, and what cannot be opened, such as files of other users, stays. With `remove` false
    everything stays. OSError when the folder cannot be read.
    """
    left, in_use = [], []
    for found in sorted(file for file in folder.iterdir() if names.fullmatch(file.name)):
        try:
            descriptor = os.open(found, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # gone meanwhile, or another user's
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or (only_empty and status.st_size):
                continue
            if not _lock(descriptor):
                in_use.append(found)
                continue
            if remove:
                found.unlink(missing_ok=True)
            left.append(found)
        finally:
            os.close(descriptor)
    return Swept(tuple(left), tuple(in_use))


def reclaim(path: Path) -> list[Path]:
    """Remove what a kill between making a file and taking its name away left in `path`; returns what was removed.

    Each removal is logged to `zinf.store`.
    """
    removed = list(sweep(path).left)
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
