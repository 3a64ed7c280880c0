"""Bytes of several segments seen as one: what a schedule's value is in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime_ext.interface import Segment, Work


@dataclass(frozen=True, slots=True)
class Range:
    """`nbytes` (a multiple of the alignment) from `start` of a segment on."""

    segment: Segment
    start: int
    nbytes: int


class Ranges:
    """Ranges laid one after the other in a buffer; reads and writes like a segment of their total size."""

    def __init__(self, name: str, ranges: Sequence[Range]) -> None:
        self.name = name
        self.ranges = _joined(ranges)
        self.nbytes = sum(r.nbytes for r in ranges)

    def read(self, into: np.ndarray, start: int = 0) -> Work:
        return self._work("read", into)

    def write(self, source: np.ndarray, start: int = 0) -> Work:
        return self._work("write", source)

    def part(self, name: str, start: int, nbytes: int) -> Ranges:
        """`nbytes` from `start` on, of what is one range."""
        (whole,) = self.ranges
        return Ranges(name, [Range(whole.segment, whole.start + start, nbytes)])

    def _work(self, verb: str, array: np.ndarray) -> Work:
        pieces: list = []
        at = 0
        for r in self.ranges:
            part = array[at : at + r.nbytes]
            work = r.segment.read(part, r.start) if verb == "read" else r.segment.write(part, r.start)
            pieces += work.pieces
            at += r.nbytes
        return Work(f"{verb}({self.name})", at, tuple(pieces))


def _joined(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Neighbours in the same segment as one range, so that a unit is one request."""
    joined: list[Range] = []
    for r in ranges:
        last = joined[-1] if joined else None
        if last is not None and last.segment is r.segment and last.start + last.nbytes == r.start:
            joined[-1] = Range(r.segment, last.start, last.nbytes + r.nbytes)
        elif r.nbytes:
            joined.append(r)
    return tuple(joined)
