"""The schedule before any pass is made once for a captured graph, however many choices of activations are tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import zcompiler
from zcompiler.stages import form


def test_choices_that_share_a_capture_share_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[Any] = []  # held, so that no two have the same id
    bare_step = form.bare_step

    def counted(name: str, graph: Any, *others: Any) -> Any:
        captured.append(graph)
        return bare_step(name, graph, *others)

    monkeypatch.setattr(form, "bare_step", counted)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
    options = {"memory": "700KiB", "compute": "eager", "machine": "laptop"}
    found = zcompiler.schedule(model, torch.zeros(256, 64), options=options)
    (reason,) = (r for r in found.graphs[0].plan.reasons if r.startswith("activations, by what a step takes"))
    tried = {name for name in ("keep ", "nvme ", "recompute ", "recompute+nvme ") if f" {name}" in reason}
    assert len(tried) == 4, reason
    assert len(captured) == len(set(map(id, captured)))
