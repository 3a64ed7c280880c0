"""Layers that some batches use and others do not, and what must not compile anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

import zcompiler
from tests.cases.both import assert_moved, assert_same_states, backward, inputs, on_nvme_and_on_host, train, twins
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import DATA, Pair, Side, adamw, pair


def decaying(parameters: Any) -> optim.Optimizer:
    return optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


class Skips(nn.Module):
    """The second of three layers is used only when asked."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, second: bool) -> torch.Tensor:
        x = self.first(x).tanh()
        if second:
            x = self.second(x).tanh()
        return self.last(x).square().mean()


def skipping(count: int) -> list[dict[str, Any]]:
    return [{**batch, "second": i % 3 == 0} for i, batch in enumerate(inputs(count, 4, 8))]


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(2)
    return make()


@on_nvme_and_on_host
def test_a_layer_that_only_some_batches_use(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, built(Skips), decaying, place)
    for batch in skipping(8):
        own.each(partial(backward, batch=batch))
        own.assert_equal_gradients()
        for side in own.sides():
            assert (side.module.second.weight.grad is not None) is batch["second"]
            side.optimizer.step()
            side.optimizer.zero_grad()
    assert_same_states(own)
    for side in own.sides():
        assert side.optimizer.state[side.module.second.weight]["step"] == 3
        assert side.optimizer.state[side.module.last.weight]["step"] == 8
    assert_moved(own, place, "param", "grad", "state")


def test_a_skipped_layer_whose_gradient_is_zero_instead_of_none_goes_on_moving(disk: Path) -> None:
    own = twins(disk, built(Skips), decaying)
    for batch in skipping(5):
        before = own.ours.module.second.weight.detach().clone()
        own.each(partial(backward, batch=batch))
        own.assert_equal_gradients()
        for side in own.sides():
            assert batch["second"] or not side.module.second.weight.grad.any()
            side.optimizer.step()
            side.optimizer.zero_grad(set_to_none=False)
        assert not torch.equal(own.ours.module.second.weight, before)
    assert_same_states(own)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


class Ordered(nn.Module):
    """Layers in an order that the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        for i in order:
            x = self.layers[i](x).tanh()
        return x.square().mean()


def test_layers_whose_order_changes_from_batch_to_batch(disk: Path) -> None:
    own = twins(disk, built(Ordered), decaying)
    orders = ((0, 1, 2), (2, 0, 1), (0, 1, 2), (2, 2), (2, 0, 1))
    train(own, [{**b, "order": order} for b, order in zip(inputs(5, 4, 8), orders, strict=True)])
    for side in own.sides():
        assert [int(side.optimizer.state[layer.weight]["step"]) for layer in side.module.layers] == [4, 4, 5]
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


class Gated(Skips):
    """What the first layer says decides whether the second is used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = self.first(x).tanh()
        if x.sum() > 0:
            x = self.second(x).tanh()
        return self.last(x).square().mean()


def test_a_layer_that_the_data_switch_on_and_off(disk: Path) -> None:
    own = twins(disk, built(Gated), decaying)
    train(own, inputs(5, 4, 8))
    for side in own.sides():
        assert 0 < side.optimizer.state[side.module.second.weight]["step"] < 5, "the data never switched"
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def graphs(own: Pair, act: Callable[[Side], Any]) -> tuple[int, int]:
    """How many graphs each side compiles while it does this, from the first one on."""
    counts = []
    for side in own.sides():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        act(side)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert_same_states(own)
    return counts[0], counts[1]


def test_a_learning_rate_that_changes_compiles_nothing_anew(disk: Path) -> None:
    def anneal(side: Side) -> None:
        schedule = optim.lr_scheduler.CosineAnnealingLR(side.optimizer, 10)
        for i in range(10):
            side.step(DATA[i % 4])
            schedule.step()

    own = pair(disk, steps=0, place=ALL_ON_NVME, backend="aot_eager")
    assert graphs(own, anneal) == (1, 1)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_training_and_evaluating_in_turn_takes_two_graphs(disk: Path) -> None:
    def alternate(side: Side) -> None:
        for i in range(6):
            side.model.train()
            side.step(DATA[i % 4])
            side.model.eval()
            with torch.no_grad():
                side.forward(DATA[3])

    own = pair(disk, steps=0, place=ALL_ON_NVME, backend="aot_eager")
    assert graphs(own, alternate) == (2, 2)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_nothing_that_a_user_does_between_steps_compiles_anew(disk: Path) -> None:
    def change(side: Side) -> None:
        for i in range(6):
            side.step(DATA[i % 4])
            group = side.optimizer.param_groups[0]
            group.update(lr=torch.tensor(0.01 * (i + 1)), weight_decay=0.1 * i, betas=(0.8, 0.9 + 0.01 * i))
            if i == 1:
                side.module.load_state_dict({k: v * 0.5 for k, v in side.module.state_dict().items()})
            if i == 2:
                weight = side.module.layers[1].weight
                weight.data = torch.full_like(weight, 0.125)
            if i == 3:
                side.optimizer = adamw(side.module.parameters())
            if i == 4:
                side.optimizer.load_state_dict(side.optimizer.state_dict())

    own = pair(disk, steps=0, place=ALL_ON_NVME, backend="aot_eager")
    assert graphs(own, change) == (1, 1)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_any_number_of_models_of_a_class_share_two_graphs(disk: Path) -> None:
    """One graph for the parameters that zinf knows and one for new ones; each model is served, however many came."""
    torch._dynamo.utils.counters.clear()
    for i in range(12):
        torch.manual_seed(i)
        own = twins(disk, Skips(), backend="aot_eager")
        train(own, skipping(1) * 2)
        assert zcompiler.stats(own.ours.model).steps == 2 * (i + 1)
        assert_moved(own, ALL_ON_NVME, "param", "grad", "state")
    assert zcompiler.stats(own.ours.model).graphs == 2
    assert zcompiler.stats(own.ours.model).fallbacks == ()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # and one of the stock backend
