"""Tensors over bytes that zinf manages, and back: raw storage bytes in storage order."""

from __future__ import annotations

import numpy as np
import torch

from zcompiler.torch_compat.tensors import storage_is_shared
from zcompiler.training.observed import ObservedParameter


def why_not_managed(p: torch.Tensor) -> str | None:
    """Why a parameter stays in ordinary memory, or None if zinf can move it."""
    if type(p) not in (torch.nn.Parameter, ObservedParameter):
        return f"its class is {type(p).__name__}, not Parameter"
    if p.device.type != "cpu":
        return f"it is on {p.device}"
    return why_not_movable(p) or ("another tensor shares its storage" if storage_is_shared(p) else None)


def why_not_movable(p: torch.Tensor) -> str | None:
    """The same as far as its layout alone tells."""
    if p.layout is not torch.strided or p.is_quantized:
        return f"its layout is {p.layout}"
    if p.numel() == 0:
        return "it is empty"
    if not is_dense(p):
        return f"its strides {p.stride()} leave gaps or overlap"
    if p.untyped_storage().nbytes() != p.numel() * p.element_size():
        return "it is a part of a larger storage"
    return None


def is_dense(t: torch.Tensor) -> bool:
    """Whether the elements fill a range of the storage without gaps or overlaps, in some order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def flat(t: torch.Tensor) -> torch.Tensor:
    """All elements of a dense tensor as one dimension, in storage order, sharing memory."""
    return t.detach().as_strided((t.numel(),), (1,))


def raw(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor in storage order, sharing memory."""
    return flat(t).view(torch.uint8)


def over(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """A tensor shaped like `like` whose storage is `array` (uint8); keeps the array alive."""
    return strided(flat_over(array, like.dtype), like)


def flat_over(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A one-dimensional tensor whose storage is `array` (uint8); keeps the array alive."""
    return torch.frombuffer(array, dtype=torch.uint8).view(dtype).detach()


def strided(elements: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One dimension of elements seen in the shape and order of `like`. Keeps no other tensor alive: whether somebody
    else looks into a storage is found out by counting."""
    return elements.as_strided(like.shape, like.stride()).detach()
