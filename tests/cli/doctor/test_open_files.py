"""How many open files a unit takes is what the doctor counts with."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from zcompiler.cli.doctor.judge.system import FILES_PER_UNIT

UNITS = 5


def test_a_unit_on_nvme_takes_as_many_files_as_the_doctor_says(disk: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(UNITS)))
    optimizer = torch.optim.AdamW(model.parameters())
    place = {"params": "nvme", "grads": "nvme", "optimizer": "nvme"}
    options = {"memory": "16MiB", "nvme": disk, "compute": "eager", "place": place}
    compiled = torch.compile(model, backend="zinf", options=options)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        compiled(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(os.listdir("/proc/self/fd")) - before == FILES_PER_UNIT * UNITS
    torch._dynamo.reset()
