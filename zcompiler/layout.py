"""How tensors lie in a bucket, at rest and in a buffer alike: each at a multiple of what direct I/O asks for."""

from __future__ import annotations

from collections.abc import Iterable

ALIGNMENT = 4096


def layout(sizes: Iterable[int], alignment: int = ALIGNMENT) -> tuple[tuple[int, ...], int]:
    """Where each slot starts, and the sum of the padded slots, in bytes."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // alignment) * alignment
    return tuple(offsets), end
