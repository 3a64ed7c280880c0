"""A model whose backward passes through another one, and hooks that update while backward runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.steps import EVERYWHERE, all_of, assert_moved, finish, grads_of, same, twins
from tests.right.programs import PLAIN, Two
from tests.right.twins import ALL_ON_NVME, assert_equal, moved
from tests.training.pair import Side

softplus = nn.functional.softplus


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


def duel(generator: Side, critic: Side, x: torch.Tensor, frozen: bool) -> dict[str, Any]:
    """A step of each; the generator's backward passes through the critic, whose gradients nobody wants then."""
    fake = generator.model(x)
    critic.optimizer.zero_grad()
    made = finish(critic, (softplus(-critic.model(x)) + softplus(critic.model(fake.detach()))).mean())
    critic.module.requires_grad_(not frozen)
    made |= {f"generator's {name}": v for name, v in finish(generator, softplus(-critic.model(fake)).mean()).items()}
    critic.module.requires_grad_(True)
    assert all((p.grad is None) == frozen for p in critic.module.parameters())
    return made | {f"after both, {name}": v for name, v in (grads_of(critic) | all_of(critic)).items()}


@EVERYWHERE
@pytest.mark.parametrize("frozen", [False, True], ids=["trainable", "frozen"])
def test_a_generator_trains_through_its_critic(frozen: bool, place: dict[str, str], disk: Path) -> None:
    generators, critics = twins(disk, Generator(), place), twins(disk, Critic(), place)
    for step in range(5):
        x = PLAIN[step % 3]
        ours, theirs = (duel(g, c, x, frozen) for g, c in zip(generators.sides(), critics.sides(), strict=True))
        assert_equal(ours, theirs, f"in step {step}, the critic's")
    assert_moved(generators, place)


@torch.no_grad()
def descend(p: torch.Tensor) -> None:
    p.add_(p.grad, alpha=-0.1)
    p.grad = None


@EVERYWHERE
def test_a_hook_that_updates_and_clears_runs_once_for_each_parameter_and_step(
    place: dict[str, str], disk: Path
) -> None:
    own = twins(disk, Two(), place)
    calls: list[list[str]] = [[], []]

    def hook(name: str, seen: list[str]) -> Callable[[torch.Tensor], None]:
        def note_and_descend(p: torch.Tensor) -> None:
            seen.append(name)
            descend(p)

        return note_and_descend

    for side, seen in zip(own.sides(), calls, strict=True):
        for name, p in side.module.named_parameters():
            p.register_post_accumulate_grad_hook(hook(name, seen))

    def act(side: Side, x: torch.Tensor) -> dict[str, Any]:
        loss = side.model(x)
        loss.backward()
        assert all(p.grad is None for p in side.module.parameters())
        return {"loss": loss.detach()} | all_of(side)

    for x in PLAIN:
        same(own, lambda side, x=x: act(side, x))
    assert len(calls[0]) == len(calls[1]) == 12
    assert sorted(calls[0]) == sorted(calls[1])
    if place == ALL_ON_NVME:
        # The hook looks at gradients through their mapping, which counts as no read.
        assert moved(own.ours.module, "grad")[1] > 0 and all(moved(own.ours.module, "param"))
    else:
        assert_moved(own, place)


class Shared(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).square().mean()


def test_a_hook_on_a_shared_weight_runs_once_with_the_whole_gradient(disk: Path) -> None:
    """Two micro-batches a step; only the second one updates."""
    own = twins(disk, Shared(), ALL_ON_NVME)
    calls = [0, 0]

    def hook(i: int) -> Callable[[torch.Tensor], None]:
        def count_and_update(p: torch.Tensor) -> None:
            calls[i] += 1
            if calls[i] % 2 == 0:
                descend(p)

        return count_and_update

    for i, side in enumerate(own.sides()):
        side.module.first.weight.register_post_accumulate_grad_hook(hook(i))

    def act(side: Side) -> dict[str, Any]:
        side.model(PLAIN[0]).backward()
        side.model(PLAIN[1]).backward()
        made = grads_of(side)
        assert side.module.first.weight.grad is None
        side.module.zero_grad()
        return made | all_of(side)

    for _ in range(3):
        same(own, act)
    assert calls == [6, 6]
    assert moved(own.ours.module, "grad")[1] > 0 and all(moved(own.ours.module, "param"))
