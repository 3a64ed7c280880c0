"""PyTorch as it is, everything in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bench.peers.child import Step, loop, serve_system


def eager(module: torch.nn.Module, settings: Mapping[str, Any]) -> Step:
    return loop(module, module.parameters(), settings)


if __name__ == "__main__":
    serve_system(eager)
