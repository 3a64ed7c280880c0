"""Where optimizer states rest changes no number, and every group of parameters keeps its own settings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.cases.both import assert_moved, assert_same_states, inputs, on_nvme_and_on_host, train, twins
from tests.right.models import built, mlp
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_on_nvme, assert_same, stock, with_zinf
from tests.right.twins import train as train_one
from tests.training.pair import DATA, Pair, Side

BOTH = (partial(optim.AdamW, lr=1e-2), partial(optim.SGD, lr=1e-2, momentum=0.9))


class Plain(nn.Module):
    """Three small layers, no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.third(self.second(self.first(x).tanh()).tanh()) - 1).square().mean()


def plain() -> nn.Module:
    torch.manual_seed(5)
    return Plain()


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    """Twins with all of ours on nvme, for optimizers to follow one another on them."""
    return twins(lasting_disk, plain())


TIERS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "host": (ON_HOST, ()),
    "nvme": (ALL_ON_NVME, ("param", "grad", "state")),
    "states alone on nvme": ({**ON_HOST, "optimizer": "nvme"}, ("state",)),
    "states alone on host": ({**ALL_ON_NVME, "optimizer": "host"}, ("param", "grad")),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_twenty_steps_lose_the_same_wherever_optimizer_states_rest(dtype: torch.dtype, disk: Path) -> None:
    data = [{"x": batch["x"].to(dtype)} for batch in inputs(1, 16, 8) * 20]
    theirs = train_one(stock(plain().to(dtype)), BOTH, data)
    assert theirs.losses[19] < theirs.losses[0] / 2
    for tier in ("host", "nvme", "states alone on nvme") if dtype is torch.float32 else ("nvme",):
        place, kinds = TIERS[tier]
        model = with_zinf(plain().to(dtype), disk, place=place)
        ours = train_one(model, BOTH, data)
        assert ours.losses[19] < ours.losses[0] / 2, tier
        assert_same(ours, theirs)
        assert_on_nvme(model, *kinds)


def test_optimizer_states_go_on_where_they_were_when_their_home_changes(disk: Path) -> None:
    own = twins(disk, plain(), BOTH[0], ON_HOST)
    train(own, inputs(4, 16, 8))
    for place, kinds in TIERS.values():
        own.ours.model = with_zinf(own.ours.module, disk, place=place, memory=f"{100 + len(kinds)}MiB")
        train(own, inputs(4, 16, 8))
    assert own.ours.optimizer.state[own.ours.module.first.weight]["step"] == 20


def grouped(settings: list[dict[str, Any]], side: Side, make: Any = optim.AdamW) -> None:
    """One group for each layer, in turn; what is over has no parameters."""
    layers = [list(layer.parameters()) for layer in side.module.children()]
    layers += [[]] * (len(settings) - len(layers))
    side.optimizer = make([{"params": p, **s} for p, s in zip(layers, settings, strict=True)], lr=1e-3)


@on_nvme_and_on_host
def test_groups_with_a_rate_of_zero_and_without_parameters_under_a_schedule(
    place: Mapping[str, str], disk: Path
) -> None:
    own = twins(disk, plain(), place=place)
    settings: list[dict[str, Any]] = [{"lr": 1e-2, "weight_decay": 0.1}, {"lr": 0.0, "weight_decay": 0.1}, {}, {}]
    own.each(partial(grouped, settings))
    still, moves = (copy.deepcopy(layer.state_dict()) for layer in (own.ours.module.second, own.ours.module.first))
    schedules = own.each(lambda side: optim.lr_scheduler.LambdaLR(side.optimizer, lambda step: 1 / (step + 1)))
    for batch in inputs(5, 16, 8):
        train(own, [batch])
        for schedule in schedules:
            schedule.step()
    for name, value in own.ours.module.second.state_dict().items():
        assert torch.equal(value, still[name])
    for name, value in own.ours.module.first.state_dict().items():
        assert not torch.equal(value, moves[name])
    rates = [group["lr"] for group in own.ours.optimizer.param_groups]
    assert rates == pytest.approx([1e-2 / 6, 0.0, 1e-3 / 6, 1e-3 / 6])
    assert_moved(own, place, "param", "grad", "state")


def test_groups_across_layers_are_not_mixed_up_when_they_are_loaded(shared: Pair) -> None:
    """Weights decay and biases do not, so that each layer belongs to two groups; loading turns a group's order over."""
    own = shared

    def make(side: Side, turned: bool) -> None:
        parameters = dict(side.module.named_parameters())
        weights, biases = ([p for n, p in parameters.items() if n.endswith(end)] for end in ("weight", "bias"))
        groups = [
            {"params": biases, "lr": 1e-2, "weight_decay": 0.0},
            {"params": weights[::-1] if turned else weights, "lr": 1e-3, "weight_decay": 0.5},
        ]
        side.optimizer = optim.AdamW(groups)

    own.each(partial(make, turned=True))
    train(own, inputs(3, 16, 8))

    def reload(side: Side) -> None:
        saved = copy.deepcopy(side.optimizer.state_dict())
        make(side, turned=True)
        side.optimizer.load_state_dict(saved)

    own.each(reload)
    assert_same_states(own)
    train(own, inputs(3, 16, 8))
    assert [group["lr"] for group in own.ours.optimizer.param_groups] == [1e-2, 1e-3]
    assert [group["weight_decay"] for group in own.ours.optimizer.param_groups] == [0.0, 0.5]
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_groups_of_one_optimizer_that_keep_different_states(shared: Pair) -> None:
    own = shared
    made: dict[Any, list[dict[str, Any]]] = {
        optim.SGD: [{"momentum": 0.9}, {"momentum": 0.0}, {"momentum": 0.5, "nesterov": True}, {}],
        optim.AdamW: [{"amsgrad": True}, {"maximize": True}, {"lr": 0.0, "amsgrad": True}, {}],
    }
    for make, settings in made.items():
        own.each(partial(grouped, settings, make=make))
        train(own, inputs(3, 16, 8))
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_a_group_that_is_added_when_its_layer_is_thawed(disk: Path) -> None:
    module = built(mlp)
    module.layers[0].requires_grad_(False)
    own = twins(disk, module, lambda parameters: optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-2))
    before = module.layers[0].weight.detach().clone()
    train(own, DATA[:2])
    assert torch.equal(module.layers[0].weight, before)

    def thaw(side: Side) -> None:
        side.module.layers[0].requires_grad_(True)
        side.optimizer.add_param_group({"params": list(side.module.layers[0].parameters()), "lr": 1e-3})

    own.each(thaw)
    train(own, DATA[:3])
    assert not torch.equal(module.layers[0].weight, before)
    assert [int(s["step"]) for s in own.ours.optimizer.state.values()] == [5, 5, 5, 5, 3, 3]
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")
