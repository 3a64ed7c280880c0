"""The 16-bit copies are made again after every edit of a parameter, and after nothing else."""

from __future__ import annotations

import copy
import ctypes
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zcompiler
from runtime_ext.nvme import NvmeStore, StoreError, Syscalls
from tests.right.twins import moved
from tests.training.autocasting import DATA, copied, train, twins
from tests.training.pair import Pair, Side
from zcompiler.training import session

# Two weights of 16 KiB in 2 bytes and a page for each bias: no other write of an update has this size.
COPIES_OF_A_LAYER = 40960


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    return twins(lasting_disk, optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-2))


def weight(side: Side) -> nn.Parameter:
    return side.module.layers[1]["up"].weight


def multiply_data(side: Side) -> None:
    weight(side).data.mul_(0.5)


@torch.no_grad()
def copy_in(side: Side) -> None:
    weight(side).copy_(torch.linspace(-1, 1, 128 * 64).view(128, 64))


@torch.no_grad()
def all_at_once(side: Side) -> None:
    torch._foreach_mul_(list(side.module.parameters()), 0.75)


@torch.no_grad()
def a_row(side: Side) -> None:
    side.module.middle.weight[3] = 0.125


def through_numpy(side: Side) -> None:
    weight(side).detach().numpy()[2:] *= 2


def through_a_pointer(side: Side) -> None:
    ctypes.memset(weight(side).data_ptr() + 64, 0, 640)


def replace_data(side: Side) -> None:
    weight(side).data = weight(side).data * 0.5 + 0.25


def load(side: Side) -> None:
    torch.manual_seed(3)
    side.module.load_state_dict({k: torch.randn_like(v) * 0.1 for k, v in side.module.state_dict().items()})


def initialize(side: Side) -> None:
    torch.manual_seed(4)
    nn.init.xavier_uniform_(side.module.layers[0]["down"].weight)


def compiled(side: Side) -> None:
    def halve(p: torch.Tensor) -> None:
        p.data.mul_(0.5)

    torch.compile(halve, backend="aot_eager")(weight(side))


def in_inference_mode(side: Side) -> None:
    with torch.inference_mode():
        side.module.middle.weight.add_(0.03125)


def thaw_a_view_of_a_frozen_one(side: Side) -> None:
    """Numpy shows a parameter that needs no gradient itself, not a detached alias of it."""
    p = side.module.middle.weight.requires_grad_(False)
    p.numpy()[5] = 0.5
    p.requires_grad_(True)


def train_uncompiled(side: Side) -> None:
    torch.manual_seed(5)
    side.module(**DATA[2]).backward()
    side.optimizer.zero_grad()


def another_optimizer(side: Side) -> None:
    """Not streamed: it changes the weights in place."""
    optimizer = torch.optim.LBFGS([side.module.middle.weight, weight(side)], max_iter=2, lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = side.forward(DATA[1])
        loss.backward()
        return loss

    optimizer.step(closure)
    side.optimizer.zero_grad()


EDITS: tuple[Callable[[Side], None], ...] = (
    multiply_data,
    copy_in,
    all_at_once,
    a_row,
    through_numpy,
    through_a_pointer,
    replace_data,
    load,
    initialize,
    compiled,
    in_inference_mode,
    thaw_a_view_of_a_frozen_one,
    train_uncompiled,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_the_next_forward_sees_an_edit(edit: Callable[[Side], None], shared: Pair) -> None:
    shared.each(edit)
    shared.assert_equal_weights()
    shared.same(lambda side: side.forward(DATA[0]).detach())
    assert copied(weight(shared.ours))
    train(shared)


def test_steps_of_an_optimizer_that_is_not_streamed_are_seen(disk: Path) -> None:
    own = twins(disk)
    with pytest.warns(RuntimeWarning, match="LBFGS"):
        own.each(another_optimizer)
    own.assert_equal_weights()
    train(own)


def test_an_alias_that_is_written_to_ever_again(shared: Pair) -> None:
    views = shared.each(lambda side: weight(side).detach().numpy())
    for i in range(3):
        shared.same(lambda side: side.forward(DATA[0]).detach())
        for view in views:
            view[i] = 0.25 * i
        train(shared, 1)
        for view in views:
            view[-1] *= -1
        for side in shared.sides():
            loss = side.forward(DATA[1])
            loss.backward()
        shared.assert_equal_gradients()
        for side in shared.sides():
            side.optimizer.zero_grad()


def test_an_average_that_takes_the_place_of_the_weights_for_an_evaluation(shared: Pair) -> None:
    averages = shared.each(lambda side: [p.detach().clone() for p in side.module.parameters()])
    for _ in range(2):
        train(shared, 1)
        for side, average in zip(shared.sides(), averages, strict=True):
            for p, mean in zip(side.module.parameters(), average, strict=True):
                mean.lerp_(p.detach(), 0.25)
        kept = shared.each(lambda side: [p.data for p in side.module.parameters()])
        for side, average in zip(shared.sides(), averages, strict=True):
            for p, mean in zip(side.module.parameters(), average, strict=True):
                p.data = mean.clone()
        shared.same(lambda side: side.forward(DATA[4]).detach())
        for side, old in zip(shared.sides(), kept, strict=True):
            for p in side.module.parameters():
                p.data = old.pop(0)
        train(shared, 1)


def all_looks(side: Side) -> Any:
    """None of them changes anything; gives back what goes on looking."""
    state = side.module.state_dict()
    for p in side.module.parameters():
        assert p.norm() > 0
        assert str(p)
    copied = copy.deepcopy(side.module)
    view = weight(side).detach().numpy()
    assert view.sum() != 0
    side.module.zero_grad()
    return state, copied, view


def test_looks_do_not_make_copies_anew(disk: Path) -> None:
    own = twins(disk, late=False)

    def step() -> tuple[int, int]:
        zcompiler.reset_stats(own.ours.model)
        own.same(lambda side: side.step(DATA[0]))
        return moved(own.ours.model, "param")

    before = step()
    looking = own.each(all_looks)
    assert step() == before
    with torch.no_grad():
        for side in own.sides():
            side.module.middle.weight[0, 0] = 1.0
    # The unit that was edited, read in 4 bytes and written in 2 once more.
    assert step() == (before[0] + 64 * 64 * 4, before[1] + 64 * 64 * 2)
    assert step() == before
    assert looking[0][2].base is not None


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_after_a_failed_update_copies_are_made_from_what_it_left(
    late: bool, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = False

    def pwritev(descriptor: int, buffers: Any, offset: int) -> int:
        if failing and len(buffers[0]) == COPIES_OF_A_LAYER:
            raise OSError(errno.EIO, "said the disk")
        return os.pwritev(descriptor, buffers, offset)

    monkeypatch.setattr(session, "NvmeStore", partial(NvmeStore, calls=Syscalls(pwritev=pwritev)))
    own = twins(disk, late=late)
    own.ours.forward(DATA[0]).backward()
    failing = True
    if late:
        own.ours.optimizer.step()
    with pytest.raises(StoreError, match="layers.0:2:bf16.*said the disk"):
        str(weight(own.ours)) if late else own.ours.optimizer.step()
    failing = False
    own.ours.optimizer.zero_grad()
    plain = torch.compile(copy.deepcopy(own.ours.module), backend="aot_eager")
    assert torch.equal(own.ours.forward(DATA[2]), plain(**DATA[2]))
    assert copied(weight(own.ours))
