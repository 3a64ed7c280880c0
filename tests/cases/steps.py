"""What tests of reported failures share: twins at each place, and all numbers that a step makes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.right.twins import ALL_ON_NVME, ON_HOST, MakeOptimizer, assert_equal, copied, gradients, moved
from tests.training.odd import states
from tests.training.pair import Pair, Side, adamw, pair

EVERYWHERE = pytest.mark.parametrize(
    "place",
    [pytest.param(ALL_ON_NVME, id="nvme"), pytest.param(ON_HOST, id="host", marks=pytest.mark.full)],
)


def twins(
    folder: Path, module: torch.nn.Module, place: dict[str, str], optimizer: MakeOptimizer = adamw, **options: Any
) -> Pair:
    """A model that rests at `place` and its twin in memory; neither has run yet."""
    return pair(folder, module, optimizer, steps=0, place=place, **options)


def finish(side: Side, loss: torch.Tensor) -> dict[str, Any]:
    """Backward and update; all numbers there are then, by name."""
    loss.backward()
    made = {"loss": loss.detach().clone()} | grads_of(side)
    side.optimizer.step()
    side.optimizer.zero_grad()
    return made | all_of(side)


def grads_of(side: Side) -> dict[str, Any]:
    return {f"gradient of {name}": grad for name, grad in copied(gradients(side.module)).items()}


def all_of(side: Side) -> dict[str, Any]:
    """Weights, buffers and the optimizer's states."""
    return copied(side.module.state_dict()) | copy.deepcopy(states(side))


def same(own: Pair, act: Callable[[Side], dict[str, Any]], what: str = "the") -> None:
    """Do the same to both twins, and see the same numbers come out."""
    assert_equal(*own.each(act), what)


def assert_moved(own: Pair, place: dict[str, str], summed: bool = False) -> None:
    """What rests on nvme really went there and back, and nothing else did.

    `summed`: autograd adds up the gradients of several forwards, in memory, so what was written is not read again.
    """
    kinds = {"params": "param", "grads": "grad", "optimizer": "state"}
    for what, home in place.items():
        read, written = moved(own.ours.module, kinds[what])
        assert (written > 0) == (home == "nvme"), f"{what}: {written} B written to nvme"
        if what != "grads" or not summed:
            assert (read > 0) == (home == "nvme"), f"{what}: {read} B read from nvme"
