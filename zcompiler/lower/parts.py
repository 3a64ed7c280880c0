"""Values that regions make or use part by part: one tensor each, and the parts' places in it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from zcompiler.capture.cut import Cut, CutRegion
from zcompiler.capture.pieces import Joined, Piece


class Whole:
    """What is being put together of parts, in whatever order they are made."""

    def __init__(self, joined: Joined) -> None:
        self.joined = joined
        self.tensor: torch.Tensor | None = None
        self._missing = len(joined.parts)

    def add(self, name: str, part: torch.Tensor) -> bool:
        """Put a part in its place; whether none is missing now.

        Sums of 16-bit parts are made in 32 bits and rounded once.
        """
        axis = self.joined.axis
        if axis is None:
            if self.tensor is None:
                self.tensor = part.float() if part.dtype.itemsize < 4 else part
            else:
                self.tensor.add_(part)
        else:
            if self.tensor is None:
                self.tensor = part.new_empty([*part.shape[:axis], self.joined.size, *part.shape[axis + 1 :]])
            start = self.joined.starts[self.joined.parts.index(name)]
            self.tensor.narrow(axis, start, part.shape[axis]).copy_(part)
        self._missing -= 1
        if not self._missing:
            self.tensor = self.tensor.to(part.dtype)
        return not self._missing


def pieces_in(cut: Cut, region: CutRegion) -> dict[str, Piece]:
    """The inputs of the region that are pieces of something."""
    return {local: cut.pieces[local] for local in region.inputs if local in cut.pieces}


def parts_in(cut: Cut, region: CutRegion) -> dict[str, tuple[str, Joined]]:
    """The outputs of the region that are parts of something, and of what."""
    outputs = set(region.outputs)
    return {part: (whole, joined) for whole, joined in cut.joins.items() for part in joined.parts if part in outputs}


def used(local: str, pieces: Mapping[str, Piece]) -> str:
    """The name of the value that an input of a region is, or is a piece of."""
    return pieces[local].whole if local in pieces else local


def cut_from(whole: torch.Tensor, piece: Piece) -> torch.Tensor:
    return whole.narrow(piece.axis, piece.start, piece.length)
