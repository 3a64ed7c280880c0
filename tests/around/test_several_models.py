"""Several models in one loop: adversaries, a teacher and its student, models with different options."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import zcompiler
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_equal, assert_on_nvme, copied, moved, with_zinf
from tests.training.looks import session_of
from zcompiler.plan.plan import Homes
from zcompiler.training.registry import records_of

STEPS = 4
Numbers = dict[str, torch.Tensor]


def layers(*sizes: int) -> torch.nn.Module:
    made: list[torch.nn.Module] = []
    for size, following in zip(sizes, sizes[1:], strict=False):
        made += [torch.nn.Linear(size, following), torch.nn.LeakyReLU(0.2)]
    return torch.nn.Sequential(*made[:-1])


def modules(*sizes: tuple[int, ...]) -> list[torch.nn.Module]:
    """The same weights each time."""
    torch.manual_seed(5)
    return [layers(*s) for s in sizes]


def aot_eager(modules: list[torch.nn.Module]) -> list[Any]:
    return [torch.compile(m, backend="aot_eager") for m in modules]


def weights(*models: Any) -> Numbers:
    return copied({f"{i}.{name}": p for i, m in enumerate(models) for name, p in m.named_parameters()})


def assert_rests_on_nvme(*models: torch.nn.Module) -> None:
    for model in models:
        records = records_of(model.parameters())
        assert len(records) == len(list(model.parameters()))
        assert all(r.unit.parameters is not None for r in records)


def adversaries(generator: Any, critic: Any) -> Numbers:
    """The loop of a GAN: the critic learns with the generator detached, then its gradients are made and not used."""
    numbers: Numbers = {}
    opts = [torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.5, 0.9)) for m in (generator, critic)]
    random = torch.Generator().manual_seed(6)
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    judge = functional.binary_cross_entropy_with_logits
    for step in range(STEPS):
        real, noise = torch.randn(8, 7, generator=random), torch.randn(8, 5, generator=random)
        made = generator(noise)
        critic.zero_grad()
        loss = judge(critic(real), ones) + judge(critic(made.detach()), zeros)
        loss.backward()
        opts[1].step()
        generator.zero_grad()
        fooled = judge(critic(made), ones)
        fooled.backward()
        opts[0].step()
        numbers |= {f"{step} critic": loss.detach().clone(), f"{step} generator": fooled.detach().clone()}
    return numbers | weights(generator, critic)


def test_adversaries_share_one_budget(disk: Path) -> None:
    sizes = (5, 32, 7), (7, 32, 1)
    plain = adversaries(*aot_eager(modules(*sizes)))
    ours = [with_zinf(m, disk, memory="8MiB", place=ALL_ON_NVME) for m in modules(*sizes)]
    assert_equal(adversaries(*ours), plain, "of the adversaries,")
    assert_rests_on_nvme(*ours)
    assert_on_nvme(ours[0], "param", "grad", "state")
    assert session_of(ours[0]) is session_of(ours[1])
    assert zcompiler.stats(ours[0]).steps == 2 * STEPS
    assert 0 < zcompiler.stats(ours[0]).peak["host"] <= 8 << 20


def train(models: list[Any], x: torch.Tensor) -> Numbers:
    numbers: Numbers = {}
    opts = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in models]
    for step in range(3):
        for i, (model, opt) in enumerate(zip(models, opts, strict=True)):
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            numbers[f"{step} {i}"] = loss.detach().clone()
    return numbers | weights(*models)


WIDE = torch.linspace(-1, 1, 4 * 512).reshape(4, 512)
NO_ROOM_FOR_TWO = "24MiB"  # one of 512 x 2048 takes 16 MiB with all of its states


def test_what_one_model_keeps_in_memory_leaves_less_for_the_next(disk: Path) -> None:
    """Each would fit alone; together they do not, so states of the second go to nvme."""
    sizes = (512, 2048), (512, 2049)
    plain = train(aot_eager(modules(*sizes)), WIDE)
    first, second = (with_zinf(m, disk, memory=NO_ROOM_FOR_TWO, place={}) for m in modules(*sizes))
    assert_equal(train([first, second], WIDE), plain, "of both models,")
    assert session_of(first) is session_of(second)
    assert {r.unit.homes for r in records_of(first.parameters())} == {Homes("host", "host", "host")}
    assert {r.unit.homes.optimizer for r in records_of(second.parameters())} == {"nvme"}
    assert all(count > 0 for count in moved(second, "state"))
    assert zcompiler.stats(first).peak["host"] <= 24 << 20


def test_models_one_after_the_other_have_the_whole_limit_each(disk: Path) -> None:
    """What nobody holds any more takes nothing, though Python has not collected it."""
    for width in (2048, 2049, 2050):
        (module,) = modules((512, width))
        module.itself = lambda module=module: module  # as a Trainer and its callbacks do: only the collector finds it
        model = with_zinf(module, disk, memory=NO_ROOM_FOR_TWO, place={})
        train([model], WIDE)
        assert {r.unit.homes for r in records_of(model.parameters())} == {Homes("host", "host", "host")}
        del module, model


def test_a_second_model_of_the_same_form_is_refused_where_only_one_fits(disk: Path) -> None:
    """Torch runs it through the graph of the first, whose plan keeps all states in memory."""
    sizes = (512, 2048), (512, 2048)
    plain = train(aot_eager(modules(*sizes)[1:]), WIDE)
    first, second = (with_zinf(m, disk, memory=NO_ROOM_FOR_TWO, place={}) for m in modules(*sizes))
    train([first], WIDE)
    before = weights(second)
    with pytest.raises(zcompiler.DoesNotFit, match="Set memory to at least 3[0-9]MiB"):
        second(WIDE)
    assert_equal(weights(second), before, "refused model's")
    train([first], WIDE)
    del first
    assert_equal(train([second], WIDE), plain, "of the second model,")


def mean_teacher(teacher: Any, student: Any) -> Numbers:
    """A teacher that is only asked, teaches by its logits, and follows its student's average."""
    numbers: Numbers = {}
    teacher.eval().requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(7)
    for step in range(STEPS):
        x = torch.randn(8, 7, generator=random)
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        loss = functional.kl_div(student(x).log_softmax(-1), wanted, reduction="batchmean")
        loss.backward()
        opt.step()
        opt.zero_grad()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.lerp_(s, 0.1)
        numbers |= {f"{step} loss": loss.detach().clone(), f"{step} teacher": wanted.clone()}
    return numbers | weights(teacher, student)


def test_a_teacher_and_its_student_share_one_budget(disk: Path) -> None:
    sizes = (7, 32, 3), (7, 32, 3)
    plain = mean_teacher(*aot_eager(modules(*sizes)))
    ours = [with_zinf(m, disk, memory="8MiB") for m in modules(*sizes)]
    assert_equal(mean_teacher(*ours), plain, "of teacher and student,")
    assert_rests_on_nvme(*ours)
    assert_on_nvme(ours[0], "param", "state")
    assert session_of(ours[0]) is session_of(ours[1])


def test_models_with_different_options_train_side_by_side_with_one_optimizer(disk: Path) -> None:
    sizes = (7, 32, 9), (9, 16, 3), (3, 16, 1)

    def train_all(models: list[Any]) -> Numbers:
        numbers: Numbers = {}
        opt = torch.optim.AdamW(chain.from_iterable(m.parameters() for m in models), lr=1e-2)
        random = torch.Generator().manual_seed(8)
        for step in range(STEPS):
            x = torch.randn(8, 7, generator=random)
            for model in models:
                x = model(x)
            loss = x.square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            numbers[f"{step}"] = loss.detach().clone()
        return numbers | weights(*models)

    plain = train_all(aot_eager(modules(*sizes)))
    places = (ALL_ON_NVME, ON_NVME, ON_HOST)
    ours = [with_zinf(m, disk, place=place) for m, place in zip(modules(*sizes), places, strict=True)]
    assert_equal(train_all(ours), plain, "of three models,")
    for model, kinds in zip(ours, (("param", "grad", "state"), ("param", "state"), ()), strict=True):
        assert_on_nvme(model, *kinds)
        assert zcompiler.stats(model).steps == STEPS
    assert len({id(session_of(m)) for m in ours}) == 3


class UsedAgain(torch.nn.Module):
    """Its weight is used in two places and its bias in one: two buckets of one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(self.first(x).tanh()) @ self.first.weight).square().mean()


def test_models_of_one_form_train_with_one_optimizer(disk: Path) -> None:
    def train(models: list[Any]) -> Numbers:
        opt = torch.optim.AdamW(chain.from_iterable(m.parameters() for m in models), lr=1e-2)
        random = torch.Generator().manual_seed(8)
        for _ in range(STEPS):
            for model in models:
                model(torch.randn(4, 8, generator=random)).backward()
            opt.step()
            opt.zero_grad()
        return weights(*models)

    def made() -> list[torch.nn.Module]:
        torch.manual_seed(5)
        return [UsedAgain(), UsedAgain()]

    plain = train(aot_eager(made()))
    ours = [with_zinf(m, disk) for m in made()]
    assert_equal(train(ours), plain, "of two models,")
    assert_on_nvme(ours[0], "param", "state")
    units = {r.unit for m in ours for r in records_of(m.parameters())}
    assert len({unit.name for unit in units}) == len(units)
