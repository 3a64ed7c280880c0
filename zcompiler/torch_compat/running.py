"""What torch and the C library do while a program runs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, other C libraries need not


def run_last(optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """Move a pre-step hook of an optimizer behind those that others registered since."""
    optimizer._optimizer_step_pre_hooks.move_to_end(handle.id)  # type: ignore[attr-defined]


def run_first(optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """Move a post-step hook of an optimizer before all others."""
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]


def trim_memory() -> None:
    """Give freed heap memory back to the system, where the C library can."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)
