from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from runtime_ext.host import HostArena, HostLane

Bytes = Callable[[int], np.ndarray]


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
