"""Control groups of the Linux kernel, version 1 or 2: a memory limit that kills, and a throttled disk.

A group is a directory, made below the group of this process where possible, and removed, with whatever still runs in
it, when the block is left.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
EMPTYING = 10.0  # seconds in which killed processes must be gone


class Unavailable(RuntimeError):
    """The kernel, or this user's rights, do not allow such a group; says why."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """Limits and counts the memory of the processes in it."""

    path: Path
    unified: bool

    def held(self) -> int:
        """Bytes of anonymous memory, which without swap nothing but their owner can give back."""
        return _field(self.path / "memory.stat", "anon" if self.unified else "rss")

    def limit(self, nbytes: int) -> int:
        """Allow `nbytes` in all, page cache and the kernel's own included, and no swap; the limit that is in force.

        Version 2 kills at once what holds more. Version 1 refuses a limit below what is held, so the least that it
        accepts is set instead: the result is then larger than `nbytes`.
        """
        nbytes = nbytes // PAGE * PAGE
        if self.unified:
            (self.path / "memory.swap.max").write_text("0")
            (self.path / "memory.max").write_text(str(nbytes))
            return nbytes
        (self.path / "memory.swappiness").write_text("0")
        limit = nbytes
        while True:
            try:
                (self.path / "memory.limit_in_bytes").write_text(str(limit))
                break
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                limit = max(limit, int((self.path / "memory.usage_in_bytes").read_text())) + PAGE
        both = self.path / "memory.memsw.limit_in_bytes"  # with swap; only where the kernel accounts for it
        if both.exists():
            both.write_text(str(limit))
        return limit

    def kills(self) -> int:
        """Processes that the kernel killed because of the limit."""
        return _field(self.path / ("memory.events" if self.unified else "memory.oom_control"), "oom_kill")


@dataclass(frozen=True, slots=True)
class DiskGroup:
    """Throttles what the processes in it read and write."""

    path: Path
    unified: bool

    def throttle(self, folder: Path, *ways: str, rate: int) -> None:
        """Let them "read", or "write", or each of both, at most `rate` bytes a second from and to the disk under
        `folder`. What goes through the page cache is written by nobody in the group, and not throttled in version 1.
        Unavailable if it is no disk."""
        device = _disk(folder)
        for way in ways:
            if self.unified:
                (self.path / "io.max").write_text(f"{device} {way[0]}bps={rate}")
            else:
                (self.path / f"blkio.throttle.{way}_bps_device").write_text(f"{device} {rate}")


@contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """A new memory group. Unavailable when there can be none."""
    with _group("memory", "memory", name) as (path, unified):
        yield MemoryGroup(path, unified)


@contextmanager
def disk_group(name: str) -> Iterator[DiskGroup]:
    """A new group for disk rates. Unavailable when there can be none."""
    with _group("blkio", "io", name) as (path, unified):
        yield DiskGroup(path, unified)


@contextmanager
def _group(old_name: str, new_name: str, name: str) -> Iterator[tuple[Path, bool]]:
    parent, unified = _parent(old_name, new_name)
    path = parent / f"zinf-bench-{os.getpid()}-{name}"
    try:
        path.mkdir()
    except OSError as error:
        raise Unavailable(f"no {new_name} cgroup can be made in {parent} ({error.strerror}); run as root") from error
    try:
        yield path, unified
    finally:
        _remove(path)


def _parent(old_name: str, new_name: str) -> tuple[Path, bool]:
    """The directory for new groups with this controller, and whether it is of version 2."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, where = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), where.lstrip("/")))
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, place, kind, options, *_ in mounts:
        if kind == "cgroup" and old_name in options.split(","):
            path = Path(place) / own.get(old_name, "")
            return (path if path.is_dir() else Path(place)), False
    for _, place, kind, *_ in mounts:
        if kind == "cgroup2" and new_name in (Path(place) / "cgroup.controllers").read_text().split():
            root = Path(place)
            path = root / own.get("", "")
            # Version 2 has no limits for a group beside processes, so the next one that hands the controller down.
            for parent in (path, *path.parents):
                control = parent / "cgroup.subtree_control"
                if control.is_file() and new_name in control.read_text().split():
                    return parent, True
                if parent == root:
                    break
            raise Unavailable(f"no cgroup above this process hands {new_name} down; see {root}/cgroup.subtree_control")
    raise Unavailable(f"no cgroup controller {new_name} (in version 1 {old_name}) is mounted")


def _remove(path: Path) -> None:
    deadline = time.monotonic() + EMPTYING
    while True:
        for pid in (path / "cgroup.procs").read_text().split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:  # it has just ended
                continue
        try:
            return path.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _field(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, *rest = line.split()
        if key == name:
            return int(rest[0])
    raise Unavailable(f"{file} has no {name}; this kernel is too old")


def _disk(folder: Path) -> str:
    """ "major:minor" of the whole disk, which is what can be throttled, under a directory."""
    device = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        raise Unavailable(f"{folder} lies on no block device of its own, so its rate cannot be limited; name another")
    whole = block.resolve()
    return ((whole.parent if (whole / "partition").exists() else whole) / "dev").read_text().strip()
