"""What a graph returns of its parameters is what the step before has made of them, however long its writes take."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zcompiler
from runtime_ext.nvme import NvmeStore
from runtime_ext.nvme.files import Syscalls
from tests.right.twins import assert_on_nvme

LATE = 0.2  # seconds that a write waits for somebody to hurry it, which nobody does


class Prompt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.layer = nn.Parameter(torch.randn(3, 8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        prompt = self.prompt.unsqueeze(0).expand(len(x), -1, -1)
        return self.layer(prompt).square().mean() + x.mean(), prompt, self.prompt[1:]


def test_views_are_up_to_date_while_the_writes_of_a_late_update_are_slow(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = threading.Event()

    def slowly(descriptor: int, buffers: Any, offset: int) -> int:
        nobody.wait(LATE)
        return os.pwritev(descriptor, buffers, offset)

    monkeypatch.setattr("zcompiler.training.session.NvmeStore", partial(NvmeStore, calls=Syscalls(pwritev=slowly)))
    seen = []
    for backend in ("zinf", "aot_eager"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = Prompt()
        place = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
        options = {"memory": "64MiB", "nvme": str(disk), "compute": "eager", "place": place}
        model: Any = torch.compile(module, backend=backend, options=options if backend == "zinf" else None)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        values = []
        for step in range(5):
            loss, prompt, part = model(torch.full((2, 8), float(step)))
            values.append(
                torch.cat([loss.detach().view(1), prompt.detach().flatten(), part.detach().flatten()]).clone()
            )
            (loss + prompt.square().sum() + part.sum()).backward()
            del loss, prompt, part
            optimizer.step()
            optimizer.zero_grad()
        seen.append(values)
        if backend == "zinf":
            assert_on_nvme(module, "param", "state")
            assert zcompiler.stats(module).late > 0
    for number, (ours, theirs) in enumerate(zip(*seen, strict=True)):
        assert torch.equal(ours, theirs), f"step {number}"
