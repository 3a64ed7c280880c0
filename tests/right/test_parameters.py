from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.right.layers import LAYERS
from tests.right.parameters import PARAMETERS
from tests.right.programs import PLAIN, Two
from tests.right.runs import assert_trains_alike
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_equal, assert_on_nvme, copied, moved
from tests.training.odd import states
from tests.training.pair import Side, pair

PROGRAMS = {**PARAMETERS, **LAYERS}
ON_HOST_TOO = ("adapters in float32 on frozen bases", "every type", "random numbers")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_from_nvme_as_it_does_in_memory(name: str, disk: Path) -> None:
    assert_trains_alike(PROGRAMS[name], disk)


@pytest.mark.parametrize("name", ON_HOST_TOO)
def test_a_program_trains_with_host_homes_as_it_does_in_memory(name: str, disk: Path) -> None:
    assert_trains_alike(PROGRAMS[name], disk, ON_HOST)


def test_layers_freeze_and_thaw_between_steps(disk: Path) -> None:
    """From the first step on; a frozen layer, its gradient and its optimizer's states stay as they are."""
    own = pair(disk, Two(), steps=0, place=ALL_ON_NVME)
    for trained in ((False, True), (True, True), (True, False), (False, True)):
        for side in own.sides():
            side.module.first.requires_grad_(trained[0])
            side.module.second.requires_grad_(trained[1])
        kept = copied(dict(own.ours.module.named_parameters()))
        for x in PLAIN[:2]:
            own.each(lambda side, x=x: side.forward({"x": x}).backward())
            own.assert_equal_gradients()
            for side in own.sides():
                side.optimizer.step()
                side.optimizer.zero_grad()
            own.assert_equal_weights()
            assert_equal(*own.each(states), "optimizer's")
        for layer, trains in zip(("first", "second"), trained, strict=True):
            weight = own.ours.module.get_submodule(layer).weight
            assert torch.equal(weight, kept[f"{layer}.weight"]) is not trains, f"{trained}: {layer}"
    assert_on_nvme(own.ours.model, "param", "grad", "state")


def test_a_penalty_on_the_weights_outside_the_model_adds_to_their_gradients(disk: Path) -> None:
    own = pair(disk, Two(), steps=0, place=ALL_ON_NVME)
    for x in PLAIN:
        for side in own.sides():
            penalty = sum(p.square().sum() for p in side.module.parameters())
            (side.forward({"x": x}) + 0.1 * penalty).backward()
        own.assert_equal_gradients()
        for side in own.sides():
            side.optimizer.step()
            side.optimizer.zero_grad()
        own.assert_equal_weights()
    assert_weights_and_states_moved(own.ours.model)


def assert_weights_and_states_moved(model: Any) -> None:
    """Of gradients autograd made sums, in memory."""
    for kind in ("param", "state"):
        assert min(moved(model, kind)) > 0, kind


def test_a_model_is_called_with_parameters_of_the_callers(disk: Path) -> None:
    own = pair(disk, Two(), steps=0, place=ALL_ON_NVME)

    def step(side: Side, x: torch.Tensor) -> torch.Tensor:
        halved = {name: p * 0.5 for name, p in side.model.named_parameters()}
        loss = torch.func.functional_call(side.model, halved, (x,)) + side.forward({"x": x})
        loss.backward()
        side.optimizer.step()
        side.optimizer.zero_grad()
        return loss.detach()

    for x in PLAIN:
        own.same(partial(step, x=x))
    own.assert_equal_weights()
    assert_weights_and_states_moved(own.ours.model)
