from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import optim

from tests.training.odd import ELEMENTWISE, MEMORY, assert_the_same, data, odd, trained
from tests.training.pair import Side, pair


def test_groups_keep_their_own_settings(disk: Path) -> None:
    def make(parameters: Any) -> optim.Optimizer:
        first, *rest = parameters
        return optim.AdamW([{"params": [first], "lr": 0.1, "weight_decay": 0.0}, {"params": rest, "lr": 1e-3}])

    made = trained(disk, make)
    assert_the_same(made)
    for side in made.sides():
        side.optimizer.param_groups[1]["lr"] = 0.05
    made.same(partial(Side.step, batch=data(1)[0]))
    assert_the_same(made)


def test_a_learning_rate_schedule_is_followed(disk: Path) -> None:
    made = pair(disk, odd(), ELEMENTWISE["SGD momentum"], steps=0, memory=MEMORY)
    schedules = made.each(lambda side: optim.lr_scheduler.OneCycleLR(side.optimizer, max_lr=0.1, total_steps=5))
    for batch in data(3):
        made.same(partial(Side.step, batch=batch))
        for schedule in schedules:
            schedule.step()
    assert_the_same(made)


def test_a_parameter_without_a_gradient_stays_as_it_is(disk: Path) -> None:
    made = trained(disk, ELEMENTWISE["AdamW"])

    def step_without(side: Side) -> torch.Tensor:
        side.forward(data(1)[0]).backward()
        side.module.wide.weight.grad = None
        before = side.module.wide.weight.detach().clone()
        side.optimizer.step()
        assert torch.equal(side.module.wide.weight, before)
        return before

    made.same(step_without)
    assert_the_same(made)
    assert torch.equal(made.ours.module.unused, torch.ones(5, 3))


def test_a_closure_is_called_once_and_its_loss_returned(disk: Path) -> None:
    made = pair(disk, odd(), ELEMENTWISE["AdamW"], steps=0, memory=MEMORY)

    def step(side: Side) -> torch.Tensor:
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            side.optimizer.zero_grad()
            loss = side.forward(data(1)[0])
            loss.backward()
            return loss

        returned = side.optimizer.step(closure)
        assert calls == 1
        return returned.detach()

    for _ in range(3):
        made.same(step)
    assert_the_same(made)


def test_training_goes_on_from_a_saved_optimizer(disk: Path) -> None:
    made = trained(disk, ELEMENTWISE["Adam amsgrad"])

    def resume(side: Side) -> None:
        saved = copy.deepcopy(side.optimizer.state_dict())
        side.optimizer = ELEMENTWISE["Adam amsgrad"](side.module.parameters())
        side.optimizer.load_state_dict(saved)

    made.each(resume)
    assert_the_same(made)
    for batch in data(2):
        made.same(partial(Side.step, batch=batch))
    assert_the_same(made)


def test_a_state_that_a_user_edits_is_kept(disk: Path) -> None:
    made = trained(disk, ELEMENTWISE["AdamW"])
    for side in made.sides():
        side.optimizer.state[side.module.wide.weight]["exp_avg"].mul_(0.5)
        side.optimizer.state[side.module.first.weight]["exp_avg_sq"] = torch.full((13, 7), 0.25)
    for batch in data(2):
        made.same(partial(Side.step, batch=batch))
    assert_the_same(made)


def test_two_optimizers_share_a_model(disk: Path) -> None:
    made = pair(disk, odd(), ELEMENTWISE["AdamW"], steps=0, memory=MEMORY)

    def split(side: Side) -> list[optim.Optimizer]:
        first, *rest = side.module.parameters()
        return [optim.SGD([first], lr=0.1, momentum=0.9), optim.AdamW(rest, lr=1e-2)]

    optimizers = made.each(split)
    for batch in data(3):
        for side, own in zip(made.sides(), optimizers, strict=True):
            side.forward(batch).backward()
            for optimizer in own:
                optimizer.step()
                optimizer.zero_grad()
        made.assert_equal_weights()


def test_hooks_on_the_step_see_and_change_gradients(disk: Path) -> None:
    made = pair(disk, odd(), ELEMENTWISE["AdamW"], steps=0, memory=MEMORY)
    norms: list[list[float]] = [[], []]

    def clip(optimizer: optim.Optimizer, *_: Any, kept: list[float]) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        kept.append(torch.nn.utils.clip_grad_norm_(parameters, 0.01).item())

    for side, kept in zip(made.sides(), norms, strict=True):
        side.optimizer.register_step_pre_hook(partial(clip, kept=kept))
    for batch in data(3):
        made.same(partial(Side.step, batch=batch))
    assert norms[0] == norms[1]
    assert_the_same(made)


def test_a_grad_scaler_unscales_inside_a_fused_step(disk: Path) -> None:
    made = pair(disk, odd(), ELEMENTWISE["AdamW fused"], steps=0, memory=MEMORY)
    scalers = made.each(lambda side: torch.amp.GradScaler("cpu", init_scale=64.0))
    for batch in data(3):
        for side, scaler in zip(made.sides(), scalers, strict=True):
            scaler.scale(side.forward(batch)).backward()
            scaler.step(side.optimizer)
            scaler.update()
            side.optimizer.zero_grad()
        made.assert_equal_weights()


def test_optimizers_may_step_in_hooks_of_backward(disk: Path) -> None:
    made = pair(disk, odd(), ELEMENTWISE["AdamW"], steps=0, memory=MEMORY)

    def hook(side: Side) -> None:
        optimizers = {p: optim.AdamW([p], lr=1e-2) for p in side.module.parameters()}

        def step(p: torch.Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in optimizers:
            p.register_post_accumulate_grad_hook(step)

    made.each(hook)
    for batch in data(3):
        made.same(lambda side, batch=batch: side.forward(batch).detach())
        for side in made.sides():
            side.forward(batch).backward()
        made.assert_equal_weights()


def test_a_hook_registered_after_the_first_step_sees_the_gradients(disk: Path) -> None:
    own = trained(disk, ELEMENTWISE["AdamW"])
    norms: list[float] = []

    def clip(optimizer: optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 0.01).item())

    for side in own.sides():
        side.optimizer.register_step_pre_hook(clip)
    own.same(lambda side: side.step(data(1)[0]))
    assert norms[0] == norms[1]
    own.assert_equal_weights()
