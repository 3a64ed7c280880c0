"""Memory, processors, limits of the process, and what the kernel offers."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from collections.abc import Callable

from zcompiler.cli.doctor.found import Memory
from zcompiler.free_memory import Reader, free_memory, memory_limits, read_file

IO_URING_SETUP = 425  # the number of the call, the same on all processors
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
OTHER_ALLOCATORS = re.compile(r"(jemalloc|tcmalloc|mimalloc)")


def look_at_memory(read: Reader = read_file, libc: Callable[[str], str | None] = os.confstr) -> Memory:
    """`libc` answers for the system's variables, of which one has the C library's name and version."""
    allocator = _allocator(read, libc)
    try:
        total, free, limits = _total(read), free_memory(read), tuple(memory_limits(read))
    except OSError as error:
        return Memory(0, 0, str(error), huge_pages=_huge_pages(read), allocator=allocator)
    return Memory(total, free, "", limits, _huge_pages(read), allocator)


def look_at_cores() -> tuple[int, int]:
    return os.cpu_count() or 1, len(os.sched_getaffinity(0))


def look_at_open_files() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def io_uring_setup() -> int:
    """The number of the error with which the kernel answers, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    parameters = ctypes.create_string_buffer(120)
    descriptor = libc.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_uint(1), parameters)
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


def look_at_io_uring(setup: Callable[[], int] = io_uring_setup) -> str:
    code = setup()
    return os.strerror(code) if code else ""


def _total(read: Reader) -> int:
    found = re.search(r"^MemTotal: +([0-9]+) kB", read("/proc/meminfo"), re.MULTILINE)
    if found is None:
        raise OSError("no MemTotal in what the kernel reports about memory")
    return int(found[1]) * 1024


def _huge_pages(read: Reader) -> str:
    try:
        found = re.search(r"\[(\w+)\]", read(HUGE_PAGES))
    except OSError:
        return "never"  # a kernel without them
    return found[1] if found is not None else "never"


def _allocator(read: Reader, libc: Callable[[str], str | None]) -> str:
    try:
        other = OTHER_ALLOCATORS.search(read("/proc/self/maps"))
        return other[1] if other is not None else libc("CS_GNU_LIBC_VERSION") or "another C library"
    except (OSError, ValueError):  # ValueError where the system knows no such variable
        return "another C library"
