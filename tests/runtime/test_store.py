from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime_ext.nvme import NvmeStore, StoreError, Syscalls, reclaim

LEFT = "zinf-0123456789abcdef.tmp"
Bytes = Callable[[int], np.ndarray]


def test_files_have_no_name(disk: Path) -> None:
    store = NvmeStore([disk])
    store.create("l0", "param", [4096])
    assert list(disk.iterdir()) == []


def test_a_missing_path_is_named(disk: Path) -> None:
    with pytest.raises(StoreError, match="none does not exist: make the directory"):
        NvmeStore([disk / "none"])
    assert list(disk.iterdir()) == []


def test_a_file_is_no_path(disk: Path) -> None:
    (disk / "file").touch()
    with pytest.raises(StoreError, match="file is a file: name a directory"):
        NvmeStore([disk / "file"])
    with pytest.raises(StoreError, match="lies under something that is a file"):
        NvmeStore([disk / "file" / "below"])


def test_no_paths_and_a_path_alone_are_refused(disk: Path) -> None:
    with pytest.raises(StoreError, match="a list of one or more directories"):
        NvmeStore([])
    with pytest.raises(StoreError, match="a list of one or more directories"):
        NvmeStore(str(disk))


def test_memory_is_no_disk() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.path.ismount(shm):
        pytest.skip("no tmpfs is mounted at /dev/shm")
    with pytest.raises(StoreError, match="/dev/shm is on tmpfs, which is memory .* count twice"):
        NvmeStore([shm])


def test_a_path_that_cannot_be_written_is_refused(disk: Path) -> None:
    disk.chmod(0o555)
    # Root may write anywhere, so another user asks, from within: it may not walk the path to here.
    code = (
        "import os, sys\nfrom runtime_ext.nvme import NvmeStore\nos.chdir(sys.argv[1])\n"
        "if os.geteuid() == 0: os.seteuid(65534)\nNvmeStore(['.'])"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code, disk], cwd=root, capture_output=True, text=True, timeout=60)
    assert "StoreError: [Errno 13] store path . is not writable for user" in result.stderr


def test_alignment_is_whole_pages(disk: Path) -> None:
    with pytest.raises(ValueError, match="alignment 100 is not a multiple"):
        NvmeStore([disk], alignment=100)
    assert NvmeStore([disk], alignment=8192).create("a", "param", [1, 1]).offsets == (0, 8192)


def test_too_much_is_refused_before_anything_is_taken(disk: Path) -> None:
    took: list[int] = []
    calls = Syscalls(fallocate=lambda d, at, n: took.append(n), statvfs=lambda _: free_bytes(10 * 4096))
    store = NvmeStore([disk], calls=calls)
    with pytest.raises(StoreError, match="wanted 45056 B, 40960 B are free, 4096 B are missing: free space") as error:
        store.create("l0", "param", [11 * 4096])
    assert error.value.errno == errno.ENOSPC
    assert str(disk) in str(error.value)
    assert took == []
    store.create("l1", "param", [10 * 4096])


def free_bytes(count: int) -> Any:
    return SimpleNamespace(f_bavail=count, f_frsize=1)


def test_a_disk_that_fills_meanwhile_is_refused_and_left_as_it_was(disk: Path) -> None:
    def full(descriptor: int, at: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = NvmeStore([disk], calls=Syscalls(fallocate=full))
    before = open_files()
    with pytest.raises(StoreError, match="no space for segment l0 .* wanted 4096 B"):
        store.create("l0", "param", [1])
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_limit_on_file_sizes_is_named(disk: Path) -> None:
    store = NvmeStore([disk])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StoreError, match="cannot take 2097152 B for segment l0 .* lift the limit on file sizes"):
            store.create("l0", "param", [2 << 20])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.create("l0", "param", [2 << 20])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB of its own."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("a small file system of its own needs root and mkfs.ext4")
    image, path = tmp_path / "image", tmp_path / "mounted"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(path)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this system mounts no image: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_small_disk_takes_what_fits_and_no_more(small_disk: Path) -> None:
    store = NvmeStore([small_disk])
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    first = store.create("l0", "param", [free // 2])
    for _ in range(3):
        with pytest.raises(StoreError, match="no space for segment l1"):
            store.create("l1", "param", [free * 3 // 4])
    store.create("l2", "param", [free // 4])
    first.close()
    store.create("l3", "param", [free // 2])


def test_segments_go_where_least_lies(disk: Path) -> None:
    paths = [disk / "a", disk / "b"]
    for path in paths:
        path.mkdir()
    store = NvmeStore(paths)
    big = store.create("l0", "param", [10 * 4096])
    assert [store.create(f"l{i}", "param", [4 * 4096]).path.name for i in range(1, 5)] == ["b", "b", "b", "a"]
    big.close()
    assert store.create("l5", "param", [4096]).path.name == "a"


def test_a_disk_that_refuses_direct_io_is_used_through_the_page_cache_and_says_so(disk: Path, aligned: Bytes) -> None:
    def open_(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.open(path, flags, mode)

    with pytest.warns(RuntimeWarning, match="refuses direct I/O") as warned:
        store = NvmeStore([disk], calls=Syscalls(open=open_))
    assert len(warned) == 1
    assert len(store.fallbacks) == 1 and str(disk) in store.fallbacks[0]
    segment = store.create("l0", "param", [8192])
    source, into = aligned(8192), aligned(8192)
    source[:] = 5
    for work in (segment.write(source), segment.read(into)):
        for piece in work.pieces:
            piece()
    assert (into == 5).all()
    assert list(disk.iterdir()) == []


def without_tmpfile(path: Path, flags: int, mode: int) -> int:
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    return os.open(path, flags, mode)


def test_without_nameless_files_the_name_is_gone_at_once(disk: Path) -> None:
    store = NvmeStore([disk], calls=Syscalls(open=without_tmpfile))
    segment = store.create("l0", "param", [4096])
    assert list(disk.iterdir()) == []
    segment.map(0)[:] = 1


def test_what_a_kill_left_is_removed_and_logged(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    left, other = disk / LEFT, disk / "mine.tmp"
    left.touch()
    other.touch()
    with caplog.at_level(logging.WARNING, "zinf.store"):
        NvmeStore([disk])
    assert list(disk.iterdir()) == [other]
    assert str(left) in caplog.text


def test_the_file_of_a_living_process_stays(disk: Path) -> None:
    held = disk / LEFT
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert reclaim(disk) == []
        assert held.exists()
    assert reclaim(disk) == [held]


def test_a_link_with_such_a_name_is_not_followed(disk: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.touch()
    (disk / LEFT).symlink_to(target)
    assert reclaim(disk) == []
    assert target.exists()


@pytest.mark.parametrize("name", ["zinf-notes.tmp", "zinf-0123.tmp", "a-zinf-0123456789abcdef.tmp", LEFT + "~"])
def test_a_file_of_another_name_stays(name: str, disk: Path) -> None:
    (disk / name).touch()
    assert reclaim(disk) == [] and (disk / name).exists()


def test_what_is_not_an_empty_file_stays(disk: Path) -> None:
    (disk / LEFT).write_bytes(b"x")
    (disk / LEFT.replace("0", "1")).mkdir()
    os.mkfifo(disk / LEFT.replace("0", "2"))
    assert reclaim(disk) == [] and len(list(disk.iterdir())) == 3


def test_a_name_that_another_process_takes_away_at_once_is_not_missed(disk: Path) -> None:
    def open_(path: Path | str, flags: int, mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        descriptor = os.open(path, flags, mode)
        if flags & os.O_EXCL:
            assert isinstance(path, Path)
            path.unlink()
        return descriptor

    assert NvmeStore([disk], calls=Syscalls(open=open_)).create("l0", "param", [4096]).nbytes == 4096


def test_too_many_open_files_say_which_limit(disk: Path) -> None:
    store = NvmeStore([disk])

    def no_more(path: Path, flags: int, mode: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    store._calls = Syscalls(open=no_more)
    with pytest.raises(StoreError, match="ulimit -n"):
        store.create("l0", "param", [4096])
