"""Twins that train side by side, one with zinf and one with a stock backend, compared in all that a step makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.right.twins import ALL_ON_NVME, ON_HOST, MakeOptimizer, assert_equal, assert_on_nvme
from tests.training.odd import states
from tests.training.pair import Pair, Side, adamw, pair

Batch = Mapping[str, Any]

on_nvme_and_on_host = pytest.mark.parametrize("place", [ALL_ON_NVME, ON_HOST], ids=["nvme", "host"])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def twins(
    folder: Path,
    module: torch.nn.Module,
    make: MakeOptimizer = adamw,
    place: Mapping[str, str] = ALL_ON_NVME,
    backend: str | None = None,
) -> Pair:
    return pair(folder, module, make, steps=0, place=place, backend=backend)


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(count: int, *shape: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": numbers(*shape, seed=i)} for i in range(count)]


def backward(side: Side, batch: Batch) -> torch.Tensor:
    loss = side.forward(dict(batch))
    loss.backward()
    return loss.detach()


def train(
    own: Pair,
    batches: Iterable[Batch],
    before_step: Callable[[Side], Any] | None = None,
    backward: Callable[[Side, Batch], torch.Tensor] = backward,
) -> list[float]:
    """A step for each batch; `before_step` is done to both sides when they have gradients. Gives the losses back."""
    losses = []
    for batch in batches:
        ours, theirs = own.each(partial(backward, batch=batch))
        assert torch.equal(ours, theirs), f"loss of step {len(losses)}: {ours.item()!r} instead of {theirs.item()!r}"
        own.assert_equal_gradients()
        if before_step is not None:
            own.same(before_step)
        for side in own.sides():
            side.optimizer.step()
            side.optimizer.zero_grad()
        losses.append(ours.item())
    assert_same_states(own)
    return losses


def assert_same_states(own: Pair) -> None:
    """The whole state_dict of the model, buffers included, and of the optimizer."""
    assert_equal(*own.each(lambda side: dict(side.module.state_dict())), "in state_dict,")
    assert_equal(*own.each(states), "optimizer's")


def assert_moved(own: Pair, place: Mapping[str, str], *kinds: str) -> None:
    """With all on nvme just these kinds moved there and back; with all on host nothing moved."""
    assert_on_nvme(own.ours.model, *(kinds if place == ALL_ON_NVME else ()))
