"""What a store refuses before it takes any space: one clear error for each thing that can be wrong with a path."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class StoreError(OSError):
    """A path, a file or a transfer of the store went wrong; `errno` says which way, the message says what to do."""


def check_directory(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Return when `path` can hold a store. Raises StoreError (path, what is wrong, remedy) when it cannot."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise StoreError(
            errno.ENOENT, f"store path {path} does not exist: make the directory, or name one that exists"
        ) from None
    except NotADirectoryError:
        raise StoreError(
            errno.ENOTDIR, f"store path {path} lies under something that is a file: name a directory"
        ) from None
    except OSError as error:
        raise StoreError(
            error.errno, f"store path {path} cannot be looked at ({error.strerror}): name a directory you may use"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(errno.ENOTDIR, f"store path {path} is a file: name a directory")
    kind = file_system(status.st_dev, mounts)
    if kind in MEMORY_FILE_SYSTEMS:
        raise StoreError(
            errno.EINVAL,
            f"store path {path} is on {kind}, which is memory and not a disk, so what rests there would count twice "
            "against memory: name a directory on a disk",
        )
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        raise StoreError(
            errno.EACCES,
            f"store path {path} is not writable for user {os.geteuid()}: change its mode or name another directory",
        )


def file_system(device: int, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system with device number `device` ("" when the kernel does not list it)."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _, tail = line.partition(" - ")
        if fields.split()[2] == wanted:
            return tail.split()[0]
    return ""
