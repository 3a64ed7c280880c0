"""The probes, each with something that fails in the way it does on a broken machine."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime_ext.nvme import Syscalls
from zcompiler.cli.doctor.found import Compiler, Cuda, Disk, Torch
from zcompiler.cli.doctor.probes.disk import look_at_disk
from zcompiler.cli.doctor.probes.software import (
    TRIAL,
    find_compiler,
    look_at_compiler,
    look_at_cuda,
    look_at_torch,
    run,
)
from zcompiler.cli.doctor.probes.system import look_at_io_uring, look_at_memory
from zcompiler.free_memory import Reader, read_file


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: object, **named: object) -> Any:
        raise error

    return fail


def reader(files: dict[str, str]) -> Reader:
    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return files[path]

    return read


def test_a_disk_is_tried_and_nothing_is_left(disk: Path) -> None:
    found = look_at_disk(disk)
    assert found.refused == "" and found.file_system and found.free > 0 and found.reserves == ""
    assert found.nameless and found.notices and found.alignment in (512, 1024, 2048, 4096)
    assert list(disk.iterdir()) == []


def direct_only(disk: Path, error: int) -> Syscalls:
    def open_(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(error, os.strerror(error))
        return os.open(path, flags, *mode)

    return Syscalls(open=open_)


def test_direct_io_may_be_refused_when_the_file_is_opened(disk: Path) -> None:
    assert look_at_disk(disk, direct_only(disk, errno.EINVAL)).alignment is None
    assert "direct I/O fails in" in look_at_disk(disk, direct_only(disk, errno.EIO)).refused
    assert list(disk.iterdir()) == []


def test_direct_io_may_be_refused_at_the_first_transfer(disk: Path) -> None:
    refused = failing(OSError(errno.EINVAL, "Invalid argument"))
    assert look_at_disk(disk, Syscalls(pwritev=refused)).alignment is None
    assert look_at_disk(disk, Syscalls(preadv=refused)).alignment is None
    broken = look_at_disk(disk, Syscalls(preadv=failing(OSError(errno.EIO, "Input/output error"))))
    assert broken.refused.startswith(f"direct I/O fails in {disk} (Input/output error): ")
    assert list(disk.iterdir()) == []


def test_direct_io_that_moves_too_little_or_something_else_does_not_count(disk: Path) -> None:
    def nothing_read(descriptor: int, views: list[memoryview], offset: int) -> int:
        return len(views[0])

    assert look_at_disk(disk, Syscalls(pwritev=lambda *_: 1)).alignment is None
    assert look_at_disk(disk, Syscalls(preadv=nothing_read)).alignment is None


def test_a_disk_of_large_sectors_takes_large_pieces_only(disk: Path) -> None:
    def coarse(descriptor: int, views: list[Any], offset: int) -> int:
        if len(views[0]) % 4096:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.pwritev(descriptor, views, offset)

    assert look_at_disk(disk, Syscalls(pwritev=coarse)).alignment == 4096


def test_a_file_system_that_lacks_what_the_store_uses(disk: Path) -> None:
    def without_names(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return os.open(path, flags, *mode)

    assert not look_at_disk(disk, Syscalls(open=without_names)).nameless
    reserves = failing(OSError(errno.EOPNOTSUPP, "Operation not supported"))
    assert look_at_disk(disk, Syscalls(fallocate=reserves)).reserves == "Operation not supported"
    untimed = SimpleNamespace(st_mtime_ns=0)
    assert not look_at_disk(disk, Syscalls(fstat=lambda descriptor: untimed)).notices  # type: ignore[arg-type,return-value]
    assert not look_at_disk(disk, Syscalls(utime=failing(PermissionError(1, "Not permitted")))).notices
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    assert look_at_disk(disk, Syscalls(statvfs=lambda path: full)).free == 0  # type: ignore[arg-type,return-value]
    assert list(disk.iterdir()) == []


def test_a_folder_that_cannot_hold_a_store_is_refused_in_the_words_of_the_store(disk: Path, tmp_path: Path) -> None:
    missing = disk / "none"
    said = f"store path {missing} does not exist: make the directory, or name one that exists"
    assert look_at_disk(missing) == Disk(missing, said)
    mounts = tmp_path / "mountinfo"
    device = disk.stat().st_dev
    mounts.write_text(f"1 0 {os.major(device)}:{os.minor(device)} / / rw - tmpfs none rw\n")
    assert "is on tmpfs" in look_at_disk(disk, mounts=mounts).refused
    full = failing(OSError(errno.EROFS, "Read-only file system"))
    assert "(Read-only file system): name another" in look_at_disk(disk, Syscalls(open=full)).refused


def test_torch_is_asked_or_says_why_not() -> None:
    fake = SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda="12.9"), get_num_threads=lambda: 3)
    assert look_at_torch(lambda: fake) == Torch("2.13.0", "", "12.9", 3)
    assert look_at_torch(failing(ImportError("no torch"))) == Torch(error="no torch")
    assert look_at_torch(failing(OSError("libtorch.so: cannot open"))).error == "libtorch.so: cannot open"


def test_the_compiler_that_is_here_compiles_the_trial() -> None:
    assert look_at_compiler() == Compiler(find_compiler())


def test_a_compiler_that_is_missing_or_fails_says_why(tmp_path: Path) -> None:
    assert look_at_compiler(failing(FileNotFoundError("none found"))) == Compiler(missing="none found")
    asked: list[Any] = []

    def compile_(command: Any, source: str) -> str:
        asked.append((command, source))
        return "In file:\n<stdin>:2:10: fatal error: Python.h: No such file\ncompilation terminated."

    assert look_at_compiler(lambda: "clang++", compile_).failed == "<stdin>:2:10: fatal error: Python.h: No such file"
    ((command, source),) = asked
    assert command[0] == "clang++" and "-fopenmp" in command and source == TRIAL
    assert not Path(command[-1]).parent.exists()
    assert "No such file" in look_at_compiler(lambda: str(tmp_path / "gone")).failed


def test_a_command_that_fails_in_silence_says_its_status() -> None:
    assert run(["false"], "") == "it ended with status 1"
    assert run(["sh", "-c", "cat >&2; exit 1"], "said") == "said"
    assert run(["true"], "") == ""


def test_cuda_is_there_or_not() -> None:
    def version(pointer: Any) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = 12090
        return 0

    driver = SimpleNamespace(cuDriverGetVersion=version)
    assert look_at_cuda(lambda name: driver, lambda name: None) == Cuda("12.9", True)
    broken = SimpleNamespace(cuDriverGetVersion=lambda pointer: 999)
    assert look_at_cuda(lambda name: broken, failing(ImportError("no cuda"))) == Cuda("", False)
    assert look_at_cuda(failing(OSError("no libcuda")), failing(ImportError("no cuda"))) == Cuda("", False)


def test_memory_of_a_machine_that_tells_everything() -> None:
    files = {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        "/proc/self/maps": "7f00 /usr/lib/libc.so.6\n",
    }
    found = look_at_memory(reader(files), lambda name: "glibc 2.36")
    assert (found.total, found.free, found.error, found.limits) == (1000 << 10, 500 << 10, "", ())
    assert (found.huge_pages, found.allocator) == ("never", "glibc 2.36")
    files["/proc/self/maps"] += "7f01 /usr/lib/libjemalloc.so.2\n"
    assert look_at_memory(reader(files), lambda name: "glibc 2.36").allocator == "jemalloc"


def test_memory_of_a_machine_that_tells_nothing() -> None:
    found = look_at_memory(reader({}), lambda name: None)
    assert found.error and (found.huge_pages, found.allocator) == ("never", "another C library")
    files = {"/proc/meminfo": "MemAvailable: 500 kB\n", "/proc/self/maps": ""}
    found = look_at_memory(reader(files), failing(ValueError("unrecognized configuration name")))
    assert "no MemTotal" in found.error and found.allocator == "another C library"


def test_memory_of_this_machine() -> None:
    found = look_at_memory(read_file)
    assert found.error == "" and 0 < found.free < found.total
    assert found.huge_pages in ("always", "madvise", "never")


@pytest.mark.parametrize(("code", "said"), [(0, ""), (errno.ENOSYS, "Function not implemented")])
def test_io_uring_is_there_or_the_kernel_says_why_not(code: int, said: str) -> None:
    assert look_at_io_uring(lambda: code) == said
