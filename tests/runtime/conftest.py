from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime_ext.host import HostArena, HostLane
from runtime_ext.nvme.checks import MEMORY_FILE_SYSTEMS, file_system

Bytes = Callable[[int], np.ndarray]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty directory on a disk."""
    kind = file_system(tmp_path.stat().st_dev)
    if kind in MEMORY_FILE_SYSTEMS:
        pytest.skip(f"{tmp_path} is on {kind}, which is memory: give pytest a --basetemp on a disk")
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def lane() -> Iterator[HostLane]:
    lane = HostLane("nvme", threads=2)
    yield lane
    lane.close()


@pytest.fixture
def aligned() -> Iterator[Bytes]:
    """Page-aligned uint8 arrays."""
    arena = HostArena("host", 64 << 20)
    yield lambda nbytes: arena.alloc(nbytes).array
    arena.close()
