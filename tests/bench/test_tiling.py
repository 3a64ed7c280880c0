"""Where memory is in pieces, the widest layer that trains grows with the square root of the number of tiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.tiling import SplitArena, trains

PIECE = 1 << 20


@pytest.mark.parametrize(("factor", "width"), [(1, 256), (2, 352), (4, 512), (16, 1024)])
def test_the_widest_of_the_multiples_of_32(factor: int, width: int, disk: Path) -> None:
    options = {"memory": 7 * PIECE, "nvme": str(disk), "compute": "eager", "late": False, "prefetch": 0}
    assert trains(width, factor, PIECE, options)
    assert not trains(width + 32, factor, PIECE, options)
    torch._dynamo.reset()


def test_no_piece_of_the_split_memory_is_longer() -> None:
    arena = SplitArena("host", PIECE, 4)
    held = [arena.alloc(PIECE) for _ in range(4)]
    for nbytes in (1, PIECE):
        with pytest.raises(MemoryError):
            arena.alloc(nbytes, overflow=True)
    held[0].free()
    with pytest.raises(MemoryError):
        arena.alloc(PIECE + 1, overflow=True)
