"""Long runs hold no more than short ones, and models that are deleted hold nothing."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.right.twins import ALL_ON_NVME, assert_equal, copied, stock, with_zinf
from tests.training.looks import held_files, stored_bytes
from tests.training.pair import adamw

X = torch.linspace(-1, 1, 4 * 256).reshape(4, 256)


def layers(width: int = 256) -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(256, width), nn.Tanh(), nn.Linear(width, 256))


def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model(X).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def forget() -> None:
    torch._dynamo.reset()
    gc.collect()


def test_a_loss_keeps_a_deleted_model_only_until_it_is_gone(disk: Path) -> None:
    def waiting() -> tuple[torch.Tensor, list[weakref.ref], torch.Tensor, nn.Module]:
        module, x = layers(), X.clone().requires_grad_()
        twin = stock(module)
        model = with_zinf(module, disk, place=ALL_ON_NVME)
        step(model, adamw(module.parameters()))
        step(twin, adamw(twin.parameters()))
        return model(x).square().mean(), [weakref.ref(p) for p in module.parameters()], x, twin

    loss, weights, x, twin = waiting()
    gc.collect()
    theirs = X.clone().requires_grad_()
    twin(theirs).square().mean().backward()
    loss.backward()
    assert torch.equal(x.grad, theirs.grad)
    assert held_files(disk)
    del loss
    forget()
    assert [w() for w in weights] == [None] * 4
    assert held_files(disk) == []


def test_a_kept_state_dict_stays_right_and_is_all_that_is_kept(disk: Path) -> None:
    """What a user keeps is mapped from files whose model is gone."""

    def states() -> tuple[dict[str, Any], dict[str, Any], list[weakref.ref]]:
        module = layers()
        twin = stock(module)
        model = with_zinf(module, disk, place=ALL_ON_NVME)
        for m in (model, twin):
            optimizer = adamw(m.parameters())
            step(m, optimizer)
            step(m, optimizer)
        return module.state_dict(), copied(twin._orig_mod.state_dict()), [weakref.ref(p) for p in module.parameters()]

    kept, values, weights = states()
    forget()
    assert [w() for w in weights] == [None] * 4
    states()  # another model comes and goes
    forget()
    assert_equal(kept, values, "kept")
    del kept
    gc.collect()
    assert (held_files(disk), stored_bytes(disk)) == ([], 0)


@dataclass(frozen=True)
class Held:
    """What the process holds: bytes of memory, descriptors, files on nvme (open or mapped) and their bytes."""

    resident: int
    descriptors: int
    files: int
    stored: int


def held(folder: Path) -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(os.listdir("/proc/self/fd"))
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), descriptors, len(held_files(folder)), stored_bytes(folder))


Loop = Callable[[Path], Callable[[int], None]]


def saving(folder: Path) -> Callable[[int], None]:
    """A state_dict of model and optimizer saved every 15 steps."""
    module = layers(1024)
    model = with_zinf(module, folder, place=ALL_ON_NVME)
    optimizer = adamw(module.parameters())

    def act(i: int) -> None:
        step(model, optimizer)
        if i % 15 == 0:
            saved = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, folder.parent / "saved.pt")

    return act


def teaching(folder: Path) -> Callable[[int], None]:
    """A student that learns from a teacher, and the teacher follows."""
    student = layers(1024)
    teacher = copy.deepcopy(student).requires_grad_(False)
    models = [with_zinf(module, folder, place=ALL_ON_NVME) for module in (student, teacher)]
    optimizer = adamw(student.parameters())

    def act(i: int) -> None:
        with torch.no_grad():
            wanted = models[1](X)
        (models[0](X) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), student.parameters(), strict=True):
                p.lerp_(q, 0.1)

    return act


def careless(folder: Path) -> Callable[[int], None]:
    """Losses whose backward never runs, gradients that are kept for a step, copies of the model, new optimizers."""
    module = layers(1024)
    model = with_zinf(module, folder, place=ALL_ON_NVME)
    kept: dict[str, Any] = {}

    def act(i: int) -> None:
        if i % 10 == 1:
            kept["optimizer"] = adamw(module.parameters())
            kept["copy"] = copy.deepcopy(module)
        kept["loss"] = model(X).square().mean()
        model(X).square().mean().backward()
        kept["optimizer"].step()
        kept["grads"] = [p.grad for p in module.parameters()]
        module.zero_grad()

    return act


@pytest.mark.parametrize(
    ("steps", "settled"), [(60, 20), pytest.param(300, 50, marks=pytest.mark.full)], ids=["60 steps", "300 steps"]
)
@pytest.mark.parametrize("loop", [saving, teaching, careless], ids=lambda loop: loop.__name__)
def test_a_long_run_holds_no_more_than_a_short_one(loop: Loop, steps: int, settled: int, disk: Path) -> None:
    act = loop(disk)
    for i in range(1, settled + 1):
        act(i)
    before = held(disk)
    assert before.stored > 0 and before.files > 0
    for i in range(settled + 1, steps + 1):
        act(i)
    after = held(disk)
    assert after.resident - before.resident <= 10 << 20
    assert (after.descriptors, after.files, after.stored) == (before.descriptors, before.files, before.stored)
