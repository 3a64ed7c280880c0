from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.right.twins import ALL_ON_NVME, with_zinf
from tests.training.looks import held_files
from tests.training.pair import adamw

ROOT = Path(__file__).parents[2]


@contextmanager
def child(folder: Path, end: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.training.child", str(folder), end]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_run_that_ends_leaves_no_file_and_no_thread(disk: Path) -> None:
    with child(disk, "exit") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.splitlines() == [*(f"step {i}" for i in range(5)), "threads []"]
    assert list(disk.iterdir()) == []


def test_a_run_that_raises_leaves_no_file(disk: Path) -> None:
    with child(disk, "raise") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert err.rstrip().endswith("KeyError: 'as asked'")
    assert out.splitlines() == ["step 0", "step 1"]
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL], ids=lambda number: number.name
)
def test_a_run_that_is_killed_in_a_step_leaves_no_file(number: signal.Signals, disk: Path) -> None:
    with child(disk, "hang") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["step 0\n", "step 1\n", "forward\n"]
        assert held_files(disk, process.pid)
        assert list(disk.iterdir()) == []
        process.send_signal(number)
        assert process.wait(timeout=60) == -number
    assert list(disk.iterdir()) == []


def test_a_model_that_is_deleted_gives_files_threads_and_space_back(disk: Path) -> None:
    def train() -> list[threading.Thread]:
        module = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 5))
        others = set(threading.enumerate())
        model = with_zinf(module, disk, place=ALL_ON_NVME)
        optimizer = adamw(module.parameters())
        for _ in range(2):
            model(torch.randn(4, 300)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(held_files(disk)) >= 2 * 4
        return [t for t in threading.enumerate() if t not in others and t.name.startswith("zinf-nvme")]

    forget(train())  # what torch opens once and keeps
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        forget(train())
    assert held_files(disk) == []
    assert len(os.listdir("/proc/self/fd")) <= before


def forget(lanes: list[threading.Thread]) -> None:
    assert lanes
    assert all(lane.daemon for lane in lanes)  # they keep no process alive
    torch._dynamo.reset()
    gc.collect()
    for lane in lanes:
        lane.join(60)
        assert not lane.is_alive()
