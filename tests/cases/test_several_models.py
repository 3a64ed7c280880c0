"""Models that train together, copies of models, and hooks that update: all over the same nvme."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.cases.steps import EVERYWHERE, all_of, assert_moved, finish, grads_of, same, twins
from tests.right.programs import PLAIN, Two
from tests.right.twins import ALL_ON_NVME, assert_equal, copied, moved
from tests.training.pair import Pair, Side

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
def follow(teacher: nn.Module, student: nn.Module) -> None:
    for p, q in zip(teacher.parameters(), student.parameters(), strict=True):
        p.lerp_(q, 0.25)


@EVERYWHERE
@pytest.mark.parametrize("after", [lambda *_: None, follow], ids=["fixed", "following the student"])
def test_a_student_learns_from_a_frozen_teacher(
    after: Callable[[nn.Module, nn.Module], None], place: dict[str, str], disk: Path
) -> None:
    students = twins(disk, Generator(), place)
    module = copy.deepcopy(students.ours.module).requires_grad_(False).eval()
    teachers = twins(disk, module, place)
    with torch.no_grad():
        for side in students.sides():
            side.module.first.weight.mul_(0.5)
    for step in range(4):
        made = []
        for student, teacher in zip(students.sides(), teachers.sides(), strict=True):
            with torch.no_grad():
                wanted = teacher.model(PLAIN[step % 3])
            made.append(finish(student, (student.model(PLAIN[step % 3]) - wanted).square().mean()))
            after(teacher.module, student.module)
            made[-1] |= {f"teacher's {name}": value for name, value in copied(teacher.module.state_dict()).items()}
        assert_equal(*made, f"in step {step}, the")
    assert_moved(students, place)


def step_on(side: Side, x: torch.Tensor = PLAIN[0]) -> dict[str, Any]:
    return finish(side, side.forward({"x": x}))


@EVERYWHERE
def test_a_copy_of_a_compiled_model_is_independent_and_trains_itself(place: dict[str, str], disk: Path) -> None:
    own = twins(disk, Two(), place)
    same(own, step_on)
    copies = own.each(lambda side: copy.deepcopy(side.model))
    values = copied(dict(copies[0].named_parameters()))
    for x in PLAIN:
        same(own, lambda side, x=x: step_on(side, x))
    assert_equal(dict(copies[0].named_parameters()), values, "copied")
    assert_equal(*(dict(c.named_parameters()) for c in copies), "copied")
    second = Pair(*(Side(c, c, torch.optim.AdamW(c.parameters(), lr=1e-2)) for c in copies))
    for x in PLAIN:
        same(second, lambda side, x=x: step_on(side, x))
        same(own, lambda side, x=x: step_on(side, x))
    assert_moved(own, place)


def test_an_average_of_the_weights_can_be_kept_and_used(disk: Path) -> None:
    own = twins(disk, Two(), ALL_ON_NVME)
    same(own, step_on)
    averages = own.each(lambda side: AveragedModel(side.module, multi_avg_fn=get_ema_multi_avg_fn(0.5)))
    for x in PLAIN:
        same(own, lambda side, x=x: step_on(side, x))
        for average, side in zip(averages, own.sides(), strict=True):
            average.update_parameters(side.module)
        assert_equal(*(copied(a.state_dict()) for a in averages), "average of")
        assert torch.equal(averages[0](x), averages[1](x))
    assert not torch.equal(averages[0].module.first.weight, own.ours.module.first.weight)
    assert_moved(own, ALL_ON_NVME)


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
