from __future__ import annotations

import pytest

from zcompiler.free_memory import Reader, free_memory

MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n"
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "25 24 0:22 / /sys/fs/cgroup rw - tmpfs none rw\n"
    "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def reader(files: dict[str, str]) -> Reader:
    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return read


def v2(folder: str, limit: str, current: int, inactive: int = 0) -> dict[str, str]:
    stat = f"anon 1\ninactive_file {inactive}\n"
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": f"{current}\n", f"{folder}/memory.stat": stat}


def v1(folder: str, limit: int, usage: int, inactive: int = 0) -> dict[str, str]:
    stat = f"inactive_file 1\ntotal_inactive_file {inactive}\n"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": stat,
    }


def test_no_cgroups_the_machine_decides() -> None:
    assert free_memory(reader({"/proc/meminfo": MEMINFO})) == 500 * 1024


def test_v2_limit_less_what_is_used_with_clean_cache_counted_as_free() -> None:
    files = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT}
    files |= v2("/sys/fs/cgroup/job", "1000\n", 600, inactive=50)
    assert free_memory(reader(files)) == 450


def test_v2_the_tightest_of_all_above_counts() -> None:
    files = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/outer/inner\n", "/proc/self/mountinfo": V2_MOUNT}
    files |= v2("/sys/fs/cgroup/outer", "900\n", 700) | v2("/sys/fs/cgroup/outer/inner", "max\n", 100)
    assert free_memory(reader(files)) == 200


def test_v2_no_limit_the_machine_decides() -> None:
    files = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT}
    files |= v2("/sys/fs/cgroup/job", "max\n", 600)
    assert free_memory(reader(files)) == 500 * 1024


def test_v1_memory_controller_only() -> None:
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "5:cpu:/job\n4:cpuset,memory:/job/x\n1:name=systemd:/\n0::/\n",
        "/proc/self/mountinfo": V1_MOUNTS,
    }
    files |= v1("/sys/fs/cgroup/memory/job/x", 1000, 300, inactive=7) | v1("/sys/fs/cgroup/memory", 2**63 - 4096, 300)
    assert free_memory(reader(files)) == 707


def test_v1_in_a_container_that_sees_its_own_part_of_the_tree() -> None:
    mount = "32 25 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    for membership in ("4:memory:/docker/abc\n", "4:memory:/elsewhere\n"):
        files = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": membership, "/proc/self/mountinfo": mount}
        files |= v1("/sys/fs/cgroup/memory", 1000, 400)
        assert free_memory(reader(files)) == 600


def test_used_above_the_limit_is_nothing_free() -> None:
    files = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT}
    files |= v2("/sys/fs/cgroup/job", "100\n", 600)
    assert free_memory(reader(files)) == 0


def test_a_kernel_that_does_not_tell_is_an_error() -> None:
    with pytest.raises(OSError, match="meminfo"):
        free_memory(reader({}))
    with pytest.raises(OSError, match="no MemAvailable"):
        free_memory(reader({"/proc/meminfo": "MemTotal: 1000 kB\n"}))


def test_this_machine_has_some_memory_free() -> None:
    assert 2**20 < free_memory() < 2**60
