"""Tensors that are laid out in a buffer come back with their bytes, dtype, shape, strides and aliases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from zcompiler.lower.saved import lay_out

BASE = torch.arange(4096, dtype=torch.float32).view(64, 64)
SQUARE = torch.randn(24, 24)
QKV = torch.randn(2, 8, 3, 4, 6)


def bits(dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 255, (40 * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def raw(t: torch.Tensor) -> torch.Tensor:
    return t.flatten().contiguous().view(torch.uint8)


CASES: dict[str, Callable[[], list[torch.Tensor]]] = {
    "a matrix and its transpose": lambda: [SQUARE, SQUARE.t()],
    "a transpose alone": lambda: [SQUARE.t()],
    "parts of one product": lambda: list(QKV.permute(2, 0, 3, 1, 4).unbind(0)),
    "a slice far into its storage": lambda: [BASE[50:52, 3:9]],
    "slices that start at odd places": lambda: [BASE[1:3, 5:], BASE[2:7, ::3]],
    "expanded": lambda: [torch.randn(5, 1).expand(5, 7), torch.tensor(3.0).expand(4, 4)],
    "no dimensions and no elements": lambda: [torch.tensor(2.5), torch.empty(0, 8), torch.empty(3, 0).t()],
    "windows that overlap": lambda: [BASE.flatten().unfold(0, 10, 3)],
    "channels last": lambda: [torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)],
    "one storage under two types": lambda: [BASE, BASE.view(torch.int32)[1:], BASE.view(torch.float16)[:, 1::2]],
    "every width": lambda: [
        bits(d) for d in (torch.bool, torch.uint8, torch.float8_e4m3fn, torch.bfloat16, torch.float64, torch.complex128)
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_laid_out_comes_back(name: str) -> None:
    tensors = {f"t{i}": t for i, t in enumerate(CASES[name]())}
    layout = lay_out(tensors)
    assert layout.nbytes % 4096 == 0 and layout.nbytes > 0
    buffer = np.zeros(layout.nbytes, np.uint8)
    layout.fill(buffer, tensors)
    back = {n: view.over(buffer) for n, view in layout.views.items()}
    for n, t in tensors.items():
        assert (back[n].dtype, back[n].shape, back[n].stride()) == (t.dtype, t.shape, t.stride()), n
        assert raw(back[n]).equal(raw(t)), n


def test_views_of_one_storage_are_moved_once_and_share_memory_again() -> None:
    tensors = {"all": BASE, "turned": BASE.t(), "part": BASE[3:5]}
    layout = lay_out(tensors)
    assert layout.nbytes == BASE.nbytes
    buffer = np.zeros(layout.nbytes, np.uint8)
    layout.fill(buffer, tensors)
    back = {n: view.over(buffer) for n, view in layout.views.items()}
    back["all"][3, 0] = -1
    assert back["turned"][0, 3] == -1 and back["part"][0, 0] == -1


def test_bytes_keep_their_alignment() -> None:
    """A kernel may choose another way for other alignments, and with it other roundings."""
    tensors = {"row": BASE[7, 3:], "own": SQUARE}
    layout = lay_out(tensors)
    storage = {"row": BASE.data_ptr(), "own": SQUARE.data_ptr()}
    for n, t in tensors.items():
        assert layout.views[n].offset % 64 == (t.data_ptr() - storage[n]) % 64, n


def test_of_a_large_storage_only_what_is_seen_is_moved() -> None:
    assert lay_out({"row": BASE[7]}).nbytes == 4096
