"""Loss scaling with steps that overflow: weights and states must stay what they were."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

from tests.cases.steps import EVERYWHERE, all_of, assert_moved, grads_of, same, twins
from tests.right.programs import PLAIN, Two
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import Pair, Side


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2)


def backward(side: Side, scale: torch.amp.GradScaler, factor: float = 1.0) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss = side.model(PLAIN[0])
    scale.scale(loss * factor).backward()
    return loss.detach()


def update(side: Side, scale: torch.amp.GradScaler, overflows: bool) -> dict[str, Any]:
    before = all_of(side)
    scale.step(side.optimizer)
    scale.update()
    after = all_of(side)
    made = {"scale": scale.get_scale()} | grads_of(side) | after
    if overflows:
        for name, value in before.items():
            assert not isinstance(value, torch.Tensor) or torch.equal(after[name], value), f"{name} has changed"
    side.optimizer.zero_grad()
    return made


def with_scalers(own: Pair) -> dict[int, torch.amp.GradScaler]:
    return {id(side): scaler() for side in own.sides()}


@EVERYWHERE
def test_a_step_that_overflows_changes_neither_weights_nor_states(place: dict[str, str], disk: Path) -> None:
    own = twins(disk, Two(), place)
    scalers, scales = with_scalers(own), []

    def act(side: Side, factor: float) -> dict[str, Any]:
        scale = scalers[id(side)]
        loss = backward(side, scale, factor)
        scale.unscale_(side.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(side.module.parameters(), 0.01, error_if_nonfinite=False)
        made = {"loss": loss} | update(side, scale, factor != 1.0)
        # inf and nan do not equal themselves
        return {k: v for k, v in made.items() if not k.startswith("gradient")} | {"norm": norm.nan_to_num(7.0)}

    for step in range(5):
        factor = float("inf") if step == 2 else 1.0
        same(own, partial(act, factor=factor), f"in step {step}, the")
        scales.append(scalers[id(own.ours)].get_scale())
    assert scales == [65536, 131072, 65536, 65536, 131072]
    assert all(state["step"] == 4 for state in own.ours.optimizer.state.values())
    assert_moved(own, place)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_first_step_that_overflows_starts_no_state(fused: bool, disk: Path) -> None:
    """A fused step is called even then, and told of the overflow: it must not count. Otherwise it takes the scale off
    the gradients itself."""
    own = twins(disk, Two(), ALL_ON_NVME, partial(optim.AdamW, lr=1e-2, fused=fused))
    scalers = with_scalers(own)

    def act(side: Side, factor: float) -> dict[str, Any]:
        scale = scalers[id(side)]
        loss = backward(side, scale, factor)
        weights = {name: p.detach().clone() for name, p in side.module.named_parameters()}
        scale.step(side.optimizer)
        scale.update()
        made = {"loss": loss, "scale": scale.get_scale()} | all_of(side)
        if factor == 1.0:
            made |= grads_of(side)
        else:
            assert all(torch.equal(made[name], value) for name, value in weights.items())
        side.optimizer.zero_grad()
        return made

    for step, factor in enumerate((float("inf"), 1.0, float("nan"), 1.0)):
        same(own, partial(act, factor=factor), f"in step {step}, the")
    assert all(state["step"] == 2 for state in own.ours.optimizer.state.values())
    assert_moved(own, ALL_ON_NVME)


def test_one_element_of_one_gradient_that_overflows_stops_the_whole_step(disk: Path) -> None:
    own = twins(disk, Two(), ALL_ON_NVME)
    scalers = with_scalers(own)

    def act(side: Side, overflows: bool) -> dict[str, Any]:
        scale = scalers[id(side)]
        loss = backward(side, scale)
        if overflows:
            side.module.second.bias.grad[-1] = float("inf")
        made = {"loss": loss} | update(side, scale, overflows)
        return {k: v for k, v in made.items() if not k.startswith("gradient")}

    for step, overflows in enumerate((False, True, False)):
        same(own, partial(act, overflows=overflows), f"in step {step}, the")
    assert_moved(own, ALL_ON_NVME)
