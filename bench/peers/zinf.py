"""torch.compile with the backend zinf, which this environment has to have; `options` are the backend's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bench.peers.child import Step, loop, serve_system


def zinf(module: torch.nn.Module, settings: Mapping[str, Any]) -> Step:
    model = torch.compile(module, backend="zinf", options=settings["options"])
    return loop(model, module.parameters(), settings)


if __name__ == "__main__":
    serve_system(zinf)
