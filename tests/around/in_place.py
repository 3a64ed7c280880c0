"""Models compiled in place (`model.compile(...)`), as libraries want them that look at the model's class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.right.twins import ON_NVME


def zinf(module: Any, folder: Path, **options: Any) -> Any:
    """The module itself: eager compute and everything but gradients on nvme, unless `options` differ."""
    chosen = {"memory": "256MiB", "nvme": str(folder), "place": ON_NVME, "compute": "eager", **options}
    module.compile(backend="zinf", options=chosen)
    return module


def stock(module: Any) -> torch.nn.Module:
    """The module itself, through `aot_eager`."""
    module.compile(backend="aot_eager")
    return module
