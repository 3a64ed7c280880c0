"""How much host memory this process may still take: the machine's, or less where a memory cgroup says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Reader = Callable[[str], str]


def read_file(path: str) -> str:
    return Path(path).read_text()


def free_memory(read: Reader = read_file) -> int:
    """Bytes that can be taken now without swapping and without meeting a cgroup's limit (versions 1 and 2).

    Clean page cache counts as free, as in the kernel's own MemAvailable. `read` returns a file's text or raises
    OSError. Raises OSError where the kernel does not tell (no /proc/meminfo).
    """
    free = _field(read("/proc/meminfo"), "MemAvailable:") * 1024
    return max(0, min([free, *(limit.left for limit in memory_limits(read))]))


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a memory cgroup (`version` 1 or 2) allows, and what is left of it, page cache not counted; in bytes."""

    folder: str
    version: int
    limit: int
    left: int


def memory_limits(read: Reader = read_file) -> list[MemoryLimit]:
    """The limits of all memory cgroups that this process is in. OSError as for any file."""
    found = (_limit(folder, version, read) for folder, version in _cgroups(read))
    return [limit for limit in found if limit is not None]


def _limit(folder: PurePosixPath, version: int, read: Reader) -> MemoryLimit | None:
    """None where the cgroup sets none or shows no memory files (a v2 root has none)."""
    limit_name, usage_name, cache = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    try:
        limit = read(str(folder / limit_name)).strip()
        if limit == "max":
            return None
        usage = int(read(str(folder / usage_name)))
        left = int(limit) - usage + _field(read(str(folder / "memory.stat")), cache)
    except FileNotFoundError:
        return None
    return MemoryLimit(str(folder), version, int(limit), left)


def read_line(path: str) -> str:
    """The text of a file of one short line, in a third of the time that an open file object takes."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096).decode()
    finally:
        os.close(file)


def anonymous_memory(read: Reader = read_line) -> int | None:
    """Bytes of its own memory that this process holds, mapped files left out; None where the kernel does not tell."""
    try:
        _, resident, shared, *_ = read("/proc/self/statm").split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _cgroups(read: Reader) -> Iterator[tuple[PurePosixPath, int]]:
    """The folder and version of each memory cgroup this process is in: its own and all above it, for each limits it."""
    try:
        memberships = read("/proc/self/cgroup").splitlines()
        mounts = read("/proc/self/mountinfo").splitlines()
    except FileNotFoundError:  # a kernel without cgroups
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        version = 2 if controllers == "" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            left, _, right = mount.partition(" - ")
            root, where = left.split()[3:5]
            kind, _, settings = right.split()[:3]
            if kind != ("cgroup2" if version == 2 else "cgroup"):
                continue
            if version == 1 and "memory" not in settings.split(","):
                continue
            inside = _below(path, root)
            for part in (inside, *inside.parents):
                yield PurePosixPath(where) / part, version


def _below(path: str, root: str) -> PurePosixPath:
    """`path` as seen in a mount that shows only `root`; in a container whose root it is not under, the mount itself."""
    try:
        return PurePosixPath(path).relative_to(root)
    except ValueError:
        return PurePosixPath()


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    raise OSError(f"no {name.rstrip(':')} in what the kernel reports about memory")
