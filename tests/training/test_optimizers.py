from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import zcompiler
from tests.right.twins import assert_equal, moved
from tests.training.pair import Pair, Side, pair

# So little that an update goes through the smallest sub-groups.
MEMORY = "1536KiB"


class Odd(torch.nn.Module):
    """Odd sizes, and one weight (13 x 5003) that does not fit in a sub-group; `unused` never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.last = (torch.nn.Linear(*s) for s in ((7, 13), (13, 5003), (5003, 3)))
        self.unused = torch.nn.Parameter(torch.ones(5, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.last(self.wide(self.first(x).tanh()).relu())
        return torch.nn.functional.mse_loss(x, labels)


def odd() -> torch.nn.Module:
    torch.manual_seed(21)
    return Odd()


def data(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(22)
    return [
        {"x": torch.randn(3, 7, generator=generator), "labels": torch.randn(3, 3, generator=generator)}
        for _ in range(count)
    ]


def states(side: Side) -> dict[str, Any]:
    """The optimizer's state_dict, flat."""
    saved = side.optimizer.state_dict()
    flat = {f"{slot}.{key}": value for slot, state in saved["state"].items() for key, value in state.items()}
    return {**flat, "groups": saved["param_groups"]}


def trained(folder: Path, make: Callable[..., optim.Optimizer], **options: Any) -> Pair:
    made = pair(folder, odd(), make, steps=0, memory=MEMORY, **options)
    for batch in data(3):
        made.same(partial(Side.step, batch=batch))
    return made


def assert_the_same(made: Pair) -> None:
    made.assert_equal_weights()
    assert_equal(*made.each(states), "optimizer's")


def updated_units(made: Pair) -> list[str]:
    return [region.name.removeprefix("update/") for region in zcompiler.schedule(made.ours.model)["update"].regions]


ELEMENTWISE = {
    "AdamW": partial(optim.AdamW, lr=1e-2),
    "AdamW foreach": partial(optim.AdamW, lr=1e-2, foreach=True),
    "AdamW fused": partial(optim.AdamW, lr=1e-2, fused=True),
    "Adam amsgrad": partial(optim.Adam, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "SGD momentum": partial(optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD fused": partial(optim.SGD, lr=1e-2, momentum=0.9, maximize=True, fused=True),
    "RMSprop": partial(optim.RMSprop, lr=1e-3, momentum=0.5, centered=True),
    "Adagrad": partial(optim.Adagrad, lr=1e-2, initial_accumulator_value=0.25),
    "Adagrad fused": partial(optim.Adagrad, lr=1e-2, fused=True),
    "NAdam": partial(optim.NAdam, lr=1e-2),
    "Adamax": partial(optim.Adamax, lr=1e-2),
    "RAdam": partial(optim.RAdam, lr=1e-2),
    "Adadelta": partial(optim.Adadelta, lr=1e-1),
    "Rprop": partial(optim.Rprop, lr=1e-3),
    "ASGD": partial(optim.ASGD, lr=1e-2),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_optimizer_updates_slices_bit_for_bit(name: str, disk: Path) -> None:
    made = trained(disk, ELEMENTWISE[name])
    assert_the_same(made)
    for kind in ("param", "state"):
        assert all(count > 0 for count in moved(made.ours.model, kind))
    assert "wide[1]" in updated_units(made), "no parameter was cut: the test is not about slices any more"
    assert zcompiler.stats(made.ours.model).fallbacks == ()


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


class HandWritten(optim.Optimizer):
    """One that torch does not know: sign of the gradient, times the norm of the parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average.lerp_(p.grad, 0.5)
                    p.sub_(average.sign() * p.norm(), alpha=group["lr"])


def test_an_optimizer_that_torch_does_not_know_runs_as_it_is_and_is_reported(disk: Path) -> None:
    with pytest.warns(RuntimeWarning, match="HandWritten"):
        made = trained(disk, HandWritten)
    assert_the_same(made)
    assert any("HandWritten" in said for said in zcompiler.stats(made.ours.model).fallbacks)


class Doubled(optim.AdamW):
    """A subclass of one that torch knows must not be taken for it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(2)
                    p.mul_(0.5)
        return super().step(closure)


def test_a_subclass_with_a_step_of_its_own_runs_as_it_is_and_is_reported(disk: Path) -> None:
    with pytest.warns(RuntimeWarning, match="Doubled"):
        made = trained(disk, partial(Doubled, lr=1e-2))
    assert_the_same(made)
    assert any("Doubled" in said for said in zcompiler.stats(made.ours.model).fallbacks)


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


def test_lbfgs_calls_its_closure_as_often_as_it_wants(disk: Path) -> None:
    own = pair(disk, odd(), lambda p: optim.LBFGS(p, lr=0.1, max_iter=5), steps=0)

    def step(side: Side) -> torch.Tensor:
        def closure() -> torch.Tensor:
            side.optimizer.zero_grad()
            loss = side.forward(data(1)[0])
            loss.backward()
            return loss

        return side.optimizer.step(closure).detach()

    with pytest.warns(RuntimeWarning, match="LBFGS"):
        for _ in range(3):
            own.same(step)
    own.assert_equal_weights()


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


def test_a_sparse_embedding_gradient(disk: Path) -> None:
    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(50, 6, sparse=True)
            self.head = torch.nn.Linear(6, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids)).square().mean()

    torch.manual_seed(0)
    own = pair(disk, Sparse(), lambda p: optim.SGD(p, lr=1e-2), steps=0)
    for i in range(3):
        own.same(lambda side, i=i: side.step({"ids": torch.tensor([i, 2, 3])}))
    own.assert_equal_weights()
