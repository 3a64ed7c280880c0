"""What the doctor says about a machine with one thing wrong: how bad it is, and what to do."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.doctor.described import DISK, GIB, GOOD, MEMORY
from zcompiler.cli.doctor.found import Compiler, Cuda, Found, Torch
from zcompiler.cli.doctor.judge.all import judge, usable
from zcompiler.cli.doctor.judge.software import PYTHON, TESTED, TORCH
from zcompiler.cli.doctor.rows import Row, size
from zcompiler.free_memory import MemoryLimit

TORCH_2_13 = GOOD.torch


def rows(found: Found) -> list[Row]:
    return [row for group in judge(found).values() for row in group]


def disk(**changes: object) -> Found:
    return replace(GOOD, disks=(replace(DISK, **changes),))


def memory(**changes: object) -> Found:
    return replace(GOOD, memory=replace(MEMORY, **changes))


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert {row.level for row in rows(GOOD)} == {"ok"}
    assert all(row.said and not row.remedy for row in rows(GOOD))
    assert usable(judge(GOOD))


@pytest.mark.parametrize(
    ("found", "about", "level", "said", "remedy"),
    [
        (replace(GOOD, python=(3, 10, 4)), "Python", "problem", "3.10.4 is too old", "Python 3.11"),
        (replace(GOOD, torch=Torch(error="No module")), "torch", "problem", "cannot be imported: No module", "2.11"),
        (replace(GOOD, torch=replace(TORCH_2_13, version="2.10.1")), "torch", "problem", "2.10.1 is not", ">=2.11,<2"),
        (replace(GOOD, torch=replace(TORCH_2_13, version="2.15.0a0")), "torch", "problem", "2.15.0a0 is not", "pip"),
        (replace(GOOD, compiler=Compiler(missing="not found")), "C++ compiler", "note", "eagerly", "g++"),
        (
            replace(GOOD, compiler=Compiler("g++", failed="no Python.h")),
            "C++ compiler",
            "problem",
            "g++",
            "python3-dev",
        ),
        (replace(GOOD, compiler=Compiler("g++", failed="no omp.h")), "C++ compiler", "problem", "omp.h", "libgomp"),
        (replace(GOOD, compiler=Compiler("g++", failed="killed")), "C++ compiler", "problem", "killed", "CXX"),
        (replace(GOOD, cores=(8, 2)), "processors", "note", "8, of which this process may use 2; torch", "to 2"),
        (replace(GOOD, cores=(16, 16)), "processors", "note", "4 threads", "OMP_NUM_THREADS"),
        (memory(error="no /proc/meminfo"), "memory", "note", "no /proc/meminfo", '"memory"'),
        (memory(huge_pages="never"), "huge pages", "note", "never", "madvise"),
        (memory(allocator="jemalloc"), "malloc", "note", "jemalloc, not glibc", "LD_PRELOAD"),
        (replace(GOOD, open_files=(256, 4096)), "open files", "note", "about 32 units", "ulimit -n 1024"),
        (replace(GOOD, open_files=(256, 256)), "open files", "note", "256 at once", "by root, from 256"),
        (replace(GOOD, machine_error="bad.toml: x"), "machine", "problem", "bad.toml: x", "calibrate"),
        (
            replace(GOOD, machine="laptop (shipped; zinf calibrate measures it)", calibrated=False),
            "machine",
            "note",
            r"not measured: laptop \(shipped\)$",
            "zinf calibrate",
        ),
        (replace(GOOD, whole=False), "machine", "note", "before attention was measured", "zinf calibrate"),
        (disk(refused="store path /a is on tmpfs: name a disk"), "folder", "problem", "is on tmpfs", "name a disk"),
        (disk(file_system="btrfs"), "file system", "note", "btrfs", "ext4 or xfs"),
        (disk(file_system=""), "file system", "note", "does not tell", "ext4 or xfs"),
        (disk(free=0), "space", "problem", "full", "free space"),
        (disk(free=GIB), "space", "note", "1.0 GiB free: .* of 67.1 million parameters; memory has more", "free"),
        (disk(reserves="Operation not supported"), "reserving", "problem", "Operation not supp", "ZINF_NVME"),
        (disk(alignment=None), "direct I/O", "note", "refused", "ext4"),
        (disk(notices=False), "edits", "note", "twice the bytes", "ext4"),
        (disk(nameless=False), "names", "note", "an empty one", "zinf clean"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_thing_is_wrong(found: Found, about: str, level: str, said: str, remedy: str) -> None:
    (row,) = (row for row in rows(found) if row.level != "ok")
    assert (row.about, row.level) == (about, level)
    assert re.search(said, row.said) and remedy in row.remedy
    assert usable(judge(found)) == (level == "note")


def test_what_torch_is_asked_for_is_left_out_without_torch() -> None:
    found = rows(replace(GOOD, torch=Torch(error="gone"), compiler=Compiler(missing="gone")))
    assert "C++ compiler" not in {row.about for row in found}
    assert next(row.said for row in found if row.about == "processors") == "4"


def test_half_as_many_threads_as_logical_processors_are_as_it_should_be() -> None:
    assert all(row.level == "ok" for row in rows(replace(GOOD, cores=(8, 8))))


def test_each_limit_of_memory_is_named_but_those_that_limit_nothing() -> None:
    limits = MemoryLimit("/sys/fs/cgroup/job", 2, 8 * GIB, 2 * GIB), MemoryLimit("/above", 1, 2**63 - 4096, 2**62)
    (row,) = (row for row in rows(memory(limits=limits)) if row.about == "memory limit")
    assert row.said == "cgroup (version 2) /sys/fs/cgroup/job: 2.0 GiB left of 8.0 GiB"


def test_what_is_only_said() -> None:
    found = replace(GOOD, io_uring="Function not implemented", open_files=(-1, -1), cuda=Cuda("13.0", True))
    said = {row.about: row for row in rows(found)}
    assert "(Function not implemented)" in said["io_uring"].said and said["open files"].said == "unlimited"
    assert said["GPU"].said.startswith("the driver takes CUDA 13.0, torch is built without CUDA")
    built = replace(found, torch=replace(TORCH_2_13, cuda="12.9"), cuda=Cuda("13.0", False))
    assert "for CUDA 12.9, cuda.core is missing" in next(row.said for row in rows(built) if row.about == "GPU")
    assert all(row.level == "ok" for row in [*rows(found), *rows(built)])


def test_several_folders_have_a_group_each() -> None:
    groups = judge(replace(GOOD, disks=(DISK, replace(DISK, path=Path("/other"), refused="gone: name another"))))
    assert list(groups) == ["Software", "Machine", "Disk /disk", "Disk /other"]
    assert not usable(groups)


def test_the_versions_are_those_of_the_package() -> None:
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    low, high = (".".join(map(str, version)) for version in TORCH)
    assert f"torch>={low},<{high}" in project["dependencies"]
    assert project["requires-python"] == ">=" + ".".join(map(str, PYTHON))
    assert f"torch=={TESTED}" in (root / "constraints.txt").read_text()


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 50, "3.0 PiB"), (5 << 70, "5120.0 EiB")]
)
def test_sizes_are_written_for_people(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
