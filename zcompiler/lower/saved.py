"""Saved tensors as bytes of a buffer: how they lie there, and tensors over the buffer that are what they were.

A storage is moved once, however many tensors look into it, and no more of it than these see. Each gets back its dtype,
shape and strides, so a transpose stays one, what was expanded takes what it took, and views share memory as before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from zcompiler.layout import ALIGNMENT

# Bytes keep their place relative to this: kernels may choose their way by the alignment of what they get.
_GRAIN = 64


@dataclass(frozen=True, slots=True)
class SavedView:
    """A tensor in a buffer: `offset` is the byte of its first element."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def over(self, array: np.ndarray) -> torch.Tensor:
        flat = torch.frombuffer(array, dtype=torch.uint8).untyped_storage()
        at = self.offset // self.dtype.itemsize
        return torch.empty(0, dtype=self.dtype).set_(flat, at, self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class SavedLayout:
    """How tensors lie in a buffer of `nbytes` bytes. `spans`: (a tensor, first and last byte of its storage, where in
    the buffer they go)."""

    nbytes: int
    views: dict[str, SavedView]
    spans: tuple[tuple[str, int, int, int], ...]

    def fill(self, array: np.ndarray, tensors: dict[str, torch.Tensor]) -> None:
        """Copy the tensors' bytes to the buffer."""
        into = torch.frombuffer(array, dtype=torch.uint8)
        for name, first, last, at in self.spans:
            source = torch.empty(0, dtype=torch.uint8)
            source.set_(tensors[name].untyped_storage(), first, (last - first,), (1,))
            into[at : at + last - first].copy_(source)


def lay_out(tensors: dict[str, torch.Tensor]) -> SavedLayout:
    """A layout for dense (strided) tensors, page by page for direct I/O; at least one page."""
    storages: dict[int, list[str]] = {}
    for name, t in tensors.items():
        storages.setdefault(t.untyped_storage().data_ptr() if t.numel() else 0, []).append(name)
    views: dict[str, SavedView] = {}
    spans: list[tuple[str, int, int, int]] = []
    end = 0
    for names in storages.values():
        reaches = [_reach(tensors[name]) for name in names]
        first = min(start for start, _ in reaches) // _GRAIN * _GRAIN
        last = max(stop for _, stop in reaches)
        spans.append((names[0], first, last, end))
        for name, (start, _) in zip(names, reaches, strict=True):
            t = tensors[name]
            views[name] = SavedView(t.dtype, tuple(t.shape), tuple(t.stride()), end + start - first)
        end += -(-(last - first) // _GRAIN) * _GRAIN
    return SavedLayout(max(1, -(-end // ALIGNMENT)) * ALIGNMENT, views, tuple(spans))


def _reach(t: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor sees: the first, and the one behind the last."""
    if not t.numel():
        return 0, 0
    start = int(t.storage_offset())
    stop = start + 1 + sum(int((size - 1) * stride) for size, stride in zip(t.shape, t.stride(), strict=True))
    return start * t.element_size(), stop * t.element_size()
