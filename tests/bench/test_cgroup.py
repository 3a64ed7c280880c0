from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cgroup import MemoryGroup, Unavailable, disk_group, memory_group

MIB = 1 << 20
ENTER = 'echo $$ > "$0" && exec "$@"'


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        with memory_group("test") as made:
            yield made
    except Unavailable as why:
        pytest.skip(str(why))


def test_what_takes_more_than_the_limit_is_killed_and_counted(group: MemoryGroup) -> None:
    assert group.limit(64 * MIB) == 64 * MIB
    hungry = ["python3", "-c", "print(len(bytes(range(256)) * (1 << 20)))"]
    done = subprocess.run(["sh", "-c", ENTER, str(group.path / "cgroup.procs"), *hungry], capture_output=True)
    assert done.returncode == -9
    assert group.kills() == 1


def test_a_limit_below_what_is_held_is_one_that_is_in_force(group: MemoryGroup) -> None:
    holds = "b = bytes(range(256)) * (1 << 18); print(len(b), flush=True); input(); b * 2"
    command = ["sh", "-c", ENTER, str(group.path / "cgroup.procs"), "python3", "-c", holds]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline()
        assert group.held() > 64 * MIB
        assert group.limit(32 * MIB) >= (32 if group.unified else 64) * MIB
        process.communicate("\n")
    assert process.returncode == -9


def test_a_group_goes_with_what_still_runs_in_it() -> None:
    try:
        with memory_group("test") as group:
            path = group.path
            process = subprocess.Popen(["sh", "-c", ENTER, str(path / "cgroup.procs"), "sleep", "1000"])
            while str(process.pid) not in (path / "cgroup.procs").read_text().split():
                assert process.poll() is None
            raise KeyboardInterrupt
    except Unavailable as why:
        pytest.skip(str(why))
    except KeyboardInterrupt:
        assert not path.exists()
        assert process.wait() == -9


def test_both_ways_are_throttled(disk: Path) -> None:
    try:
        with disk_group("test") as group:
            group.throttle(disk, "read", "write", rate=500_000_000)
            files = ["io.max"] if group.unified else [f"blkio.throttle.{way}_bps_device" for way in ("read", "write")]
            for file in files:
                device, *rates = (group.path / file).read_text().split()
                assert ":" in device and {rate.rpartition("=")[2] for rate in rates} >= {"500000000"}
    except Unavailable as why:
        pytest.skip(str(why))


def test_a_folder_without_a_disk_of_its_own_cannot_be_throttled() -> None:
    try:
        with disk_group("test") as group, pytest.raises(Unavailable, match="/proc lies on no block device"):
            group.throttle(Path("/proc"), "read", rate=1)
    except Unavailable as why:
        pytest.skip(str(why))
