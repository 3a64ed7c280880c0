"""Several graphs of one model under a limit that leaves room for some of its states only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import zcompiler
from tests.right.twins import moved
from tests.training.autocasting import DATA, VOCABULARY, copied, train, twins
from tests.training.pair import Pair, Side
from zcompiler.training.registry import records_of

AUTO = {"params": "auto", "grads": "auto", "optimizer": "auto"}


class Layers(nn.Module):
    """Layers of a norm and two linear maps, 0.9 MB of parameters in all; `low` as in Autocasting."""

    def __init__(self, low: torch.dtype | None = None) -> None:
        super().__init__()
        self.low = low
        self.embedding = nn.Embedding(VOCABULARY, 128)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(128), "up": nn.Linear(128, 256), "down": nn.Linear(256, 128)})
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.low or torch.bfloat16, enabled=self.low is not None):
            hidden = self.embedding(x)
            for layer in self.layers:
                hidden = hidden + layer["down"](torch.relu(layer["up"](layer["norm"](hidden))))
        return hidden.float().square().mean()


def evaluate(own: Pair) -> None:
    with torch.no_grad():
        own.same(lambda side: side.forward(DATA[5]))


def homes(own: Pair, kind: str) -> set[str]:
    return {getattr(r.unit.homes, kind) for r in records_of(own.ours.module.parameters())}


def peak(own: Pair) -> int:
    return zcompiler.stats(own.ours.model).peak["host"]


@pytest.mark.parametrize(
    ("limit", "params", "grads", "states"),
    [
        ("1300KB", {"nvme"}, {"nvme"}, {"nvme"}),
        ("1500KB", {"nvme", "host"}, {"nvme", "host"}, {"nvme", "host"}),
        ("3200KB", {"host"}, {"host"}, {"nvme", "host"}),
    ],
)
def test_an_evaluation_that_fits_in_memory_does_not_keep_a_training_that_does_not_from_fitting(
    limit: str, params: set[str], grads: set[str], states: set[str], disk: Path
) -> None:
    own = twins(disk, module=Layers(), place=AUTO, memory=limit, steps=0)
    evaluate(own)
    assert homes(own, "params") == homes(own, "optimizer") == {"host"}
    for _ in range(2):
        train(own)
        evaluate(own)
    assert (homes(own, "params"), homes(own, "grads"), homes(own, "optimizer")) == (params, grads, states)
    assert min(moved(own.ours.model, "state")) > 0
    assert zcompiler.stats(own.ours.model).fallbacks == ()


def test_a_model_that_is_only_evaluated_takes_no_room_for_gradients_and_states(disk: Path) -> None:
    """Beside one that is trained under the same limit, which it would leave no room if it took four times its size."""
    teacher = twins(disk, module=Layers(), place=AUTO, memory="5MB", steps=0)
    evaluate(teacher)
    student = twins(disk, module=nn.Sequential(Layers(), nn.Identity()), place=AUTO, memory="5MB", steps=0)
    for batch in DATA[:2]:
        student.same(lambda side, batch=batch: step(side, batch["x"]))
    assert homes(student, "optimizer") == {"host"}


def step(side: Side, x: torch.Tensor) -> torch.Tensor:
    loss = side.model(x)
    loss.backward()
    side.optimizer.step()
    side.optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("first", [torch.bfloat16, None], ids=["on", "off"])
def test_autocast_goes_on_and_off_between_steps(first: torch.dtype | None, disk: Path) -> None:
    """Under autocast norms and linear maps are placed apart; without, they are used together."""
    own = twins(disk, module=Layers(first), place=AUTO, memory="1500KB", steps=0)
    for _ in range(2):
        for low in (first, None if first else torch.bfloat16):
            for side in own.sides():
                side.module.low = low
            train(own)
    assert copied(own.ours.module.layers[0]["up"].weight) or first is not None
    assert "nvme" in homes(own, "params")
    assert min(moved(own.ours.model, "param")) > 0
    assert zcompiler.stats(own.ours.model).fallbacks == ()
