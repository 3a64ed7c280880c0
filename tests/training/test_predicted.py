"""A predicted step moves what the real one moves, lane by lane, and says when that is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import shipped_machine
from zcompiler.training.predicted import predicted_step
from zcompiler.training.registry import records_of, settle

LAPTOP = shipped_machine("laptop")


class Trained:
    def __init__(self, folder: Path, **options: Any) -> None:
        layers = [m for _ in range(3) for m in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
        self.module = torch.nn.Sequential(*layers)
        chosen = {"memory": "64MiB", "compute": "eager", "nvme": str(folder), **options}
        self.model = torch.compile(self.module, backend="zinf", options=chosen)
        self.optimizer = torch.optim.AdamW(self.module.parameters())

    def passes(self) -> None:
        self.model(torch.randn(8, 64)).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def session(self) -> Any:
        return records_of(self.module.parameters())[0].unit.session

    def moved(self) -> tuple[int, int]:
        """Bytes read and written so far. After a backward a late update has nothing left but to write."""
        settle()
        stats = zcompiler.stats(self.module)
        return sum(stats.read["nvme"].values()), sum(stats.written["nvme"].values())


@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "late"])
@pytest.mark.parametrize("params", ["nvme", "host"])
@pytest.mark.parametrize("grads", ["nvme", "host"])
def test_a_step_moves_the_bytes_that_were_predicted(tmp_path: Path, is_late: bool, params: str, grads: str) -> None:
    place = {"params": params, "grads": grads, "optimizer": "nvme"}
    trained = Trained(tmp_path, late=is_late, place=place)
    for _ in range(2):
        trained.passes()
        trained.update()
    trained.passes()
    before = trained.moved()
    trained.update()
    trained.passes()
    moved = [after - then for after, then in zip(trained.moved(), before, strict=True)]
    assert zcompiler.stats(trained.module).late == (2 if is_late else 0)  # the first makes the states
    found = predicted_step(trained.session, LAPTOP, steps=2).moved
    assert [found["nvme_read"], found["nvme_write"]] == [2 * n for n in moved]
    assert min(moved) > 0


def test_each_phase_of_a_step_has_its_seconds(tmp_path: Path) -> None:
    trained = Trained(tmp_path, late=False, place={"params": "nvme", "grads": "nvme", "optimizer": "nvme"})
    trained.passes()
    trained.update()
    phases = dict(predicted_step(trained.session, LAPTOP).phases())
    assert list(phases) == ["fwd", "bwd", "update"] and min(phases.values()) > 0


def test_before_the_first_optimizer_step_there_is_nothing_to_predict(tmp_path: Path) -> None:
    trained = Trained(tmp_path, place={"params": "nvme"})
    trained.passes()
    with pytest.raises(ZinfError, match="the schedules here are: graph0"):
        predicted_step(trained.session, LAPTOP)
