"""A model that is asked before it is trained, and while it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

import zcompiler
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


def _small(disk: Path) -> torch.nn.Module:
    options = {"memory": "64MiB", "nvme": str(disk), "compute": "eager"}
    return torch.compile(torch.nn.Linear(64, 64), backend="zinf", options=options)  # type: ignore[return-value]


def test_a_model_that_is_never_trained_knows_what_others_hold_after_its_first_call(disk: Path) -> None:
    """So that what is free is not given back, and faulted in again, at each call."""
    model = _small(disk)
    with torch.no_grad():
        model(torch.zeros(4, 64))
    others = zcompiler.stats(model).others
    assert others is not None and others > 0


def test_what_a_training_call_holds_is_not_taken_for_what_others_hold(disk: Path) -> None:
    model = _small(disk)
    loss = model(torch.zeros(4, 64)).sum()
    with torch.no_grad():
        model(torch.zeros(4, 64))
    assert zcompiler.stats(model).others is None
    loss.backward()
    assert zcompiler.stats(model).others is not None
