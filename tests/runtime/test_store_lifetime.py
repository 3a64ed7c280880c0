"""Nothing of a store is left, however its process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime_ext.host import HostLane
from runtime_ext.nvme import NvmeStore

Bytes = Callable[[int], np.ndarray]
MIB = 1 << 20
SIZE = 64 * MIB

PROCESS = """
import sys
from runtime_ext.host import HostArena, HostLane
from runtime_ext.nvme import NvmeStore
segment = NvmeStore([sys.argv[1]]).create("l0", "param", [{size}])
lane, buffer = HostLane("nvme_write", 2), HostArena("host", {size}).alloc({size})
mapped = segment.map(0)
mapped[:4096] = 1
lane.submit(segment.write(buffer.array))
print("ready", flush=True)
{end}
"""


def free(path: Path) -> int:
    os.sync()
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def start(disk: Path, end: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS.format(size=SIZE, end=end), str(disk)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("end", "sent", "code"),
    [
        ("", None, 0),
        ("raise RuntimeError", None, 1),
        ("sys.stdin.read()", signal.SIGTERM, -signal.SIGTERM),
        ("sys.stdin.read()", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["exit", "exception", "SIGTERM", "SIGKILL"],
)
def test_nothing_is_left(disk: Path, end: str, sent: signal.Signals | None, code: int) -> None:
    process = start(disk, end)
    if sent is not None:
        held = free(disk)
        process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert list(disk.iterdir()) == []
    if sent is not None:
        # Others use the disk too, so not to the byte.
        assert free(disk) - held > SIZE // 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_the_store_usable(disk: Path, lane: HostLane, aligned: Bytes) -> None:
    store = NvmeStore([disk])
    segment = store.create("l0", "param", [MIB])
    source, into = aligned(MIB), aligned(MIB)
    source[:] = 3
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            lane.submit(segment.read(into))
        except RuntimeError as error:
            refused = "forked child" in str(error)
        lane.close()
        store.close()
        os._exit(0 if refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    written = lane.submit(segment.write(source))
    lane.submit(segment.read(into), after=[written]).wait()
    assert (into == 3).all()
    assert (segment.map(0) == 3).all()


def test_a_forked_child_that_writes_to_a_mapped_slot_changes_only_its_own_copy(disk: Path) -> None:
    store = NvmeStore([disk])
    segment = store.create("unit", "param", [4096])
    look = segment.map(0)
    look[:] = 7
    child = os.fork()
    if child == 0:
        before = int(look[0])
        look[:] = 9
        os._exit(before if int(look[0]) == 9 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (look == 7).all() and (segment.map(0) == 7).all()
    store.close()
