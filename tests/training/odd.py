"""A model of odd sizes whose widest weight is updated in slices, and the optimizers that can do so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import optim

import zcompiler
from tests.right.twins import assert_equal
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
