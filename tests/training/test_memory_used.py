"""Memory that is given is used: with units placed one by one, a step moves little more than the least possible."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import zcompiler
from bench.limits import SURPLUS, least
from zcompiler.schedule.sizes import parse_bytes
from zcompiler.training.session import session_for

WIDTH, DEPTH = 256, 12


def built() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(m for _ in range(DEPTH) for m in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())))


def trained(module: torch.nn.Module, backend: str, options: dict[str, object] | None) -> list[torch.Tensor]:
    """Three steps; zinf's bytes are counted from the third on."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    model = torch.compile(module, backend=backend, options=options)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for number in range(4):
        if number == 3 and options:
            zcompiler.reset_stats(module)
        loss = model(torch.randn(4, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("memory", ["3MiB", "5MiB", "8MiB", "11MiB", "16MiB"])
def test_a_step_moves_little_more_than_its_limit_makes_it(memory: str, disk: Path) -> None:
    options: dict[str, object] = {"memory": memory, "nvme": str(disk), "compute": "eager"}
    module = built()
    ours = trained(module, "zinf", options)
    stats = zcompiler.stats(module)
    plan = session_for(options).plans["graph0"]
    room = parse_bytes(memory) - plan.least
    at_least = least(sum(p.numel() for p in module.parameters()), room) if plan.uses("nvme") else 0
    moved = sum(stats.read["nvme"].values()) + sum(stats.written["nvme"].values())
    assert moved <= SURPLUS * at_least, f"{moved} of {at_least:.0f}: {plan.reasons}"
    assert (moved > 0) == plan.uses("nvme") == (memory != "16MiB")
    assert plan.peak["host"] <= parse_bytes(memory)
    assert torch.stack(ours).equal(torch.stack(trained(built(), "aot_eager", None)))
