"""A model that is asked before it is trained, and while it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from tests.right.twins import assert_on_nvme
from tests.training.pair import DATA, Side, pair

MODES: tuple[Callable[[], AbstractContextManager[object]], ...] = torch.no_grad, nullcontext, torch.inference_mode


def test_an_evaluation_before_the_first_step_and_between_steps_changes_nothing(disk: Path) -> None:
    own = pair(disk, steps=0)

    def evaluate(side: Side) -> torch.Tensor:
        losses = []
        side.model.eval()
        for mode in MODES:
            with mode():
                losses.append(side.forward(DATA[0]).detach().clone())
        side.model.train()
        return torch.stack(losses)

    for _ in range(2):
        own.same(evaluate)
        own.goes_on()
    assert_on_nvme(own.ours.model, "param", "state")
