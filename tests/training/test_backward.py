from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.twins import ALL_ON_NVME, assert_equal, copied, gradients
from tests.training.looks import in_use
from tests.training.pair import DATA, Pair, Side, pair


@pytest.fixture
def own(disk: Path) -> Pair:
    return pair(disk, place=ALL_ON_NVME)


def finish(own: Pair) -> None:
    own.assert_equal_gradients()
    for side in own.sides():
        side.optimizer.step()
        side.optimizer.zero_grad()
    own.goes_on()
    assert in_use(own.ours.module) == 0


def test_one_backward_of_two_forwards(own: Pair) -> None:
    for side in own.sides():
        (side.forward(DATA[0]) + 2 * side.forward(DATA[1])).backward()
    finish(own)


def test_backwards_in_another_order_than_the_forwards(own: Pair) -> None:
    for side in own.sides():
        first, second = side.forward(DATA[0]), side.forward(DATA[1])
        third = side.forward(DATA[2])
        second.backward()
        first.backward()
        third.backward()
    finish(own)


def test_a_forward_whose_backward_never_runs_gives_its_memory_back(own: Pair) -> None:
    for side in own.sides():
        loss = side.forward(DATA[3])
        del loss
    gc.collect()
    assert in_use(own.ours.module) == 0
    own.goes_on()


def test_an_update_between_forward_and_another_forward(own: Pair) -> None:
    """The second forward sees the new weights though the first one's backward has not run."""
    for side in own.sides():
        side.forward(DATA[0]).backward()
        waiting = side.forward(DATA[1])
        del waiting
        side.optimizer.step()
        side.optimizer.zero_grad()
    own.goes_on()


def test_gradients_asked_for_by_name(own: Pair) -> None:
    def ask(side: Side) -> torch.Tensor:
        weights = [layer.weight for layer in side.module.layers]
        return torch.cat([g.flatten() for g in torch.autograd.grad(side.forward(DATA[0]), weights)])

    own.same(ask)
    assert all(p.grad is None for p in own.ours.module.parameters())
    own.goes_on()


def test_a_backward_after_a_weight_was_changed_is_refused_like_in_memory(own: Pair) -> None:
    for side in own.sides():
        loss = side.forward(DATA[0])
        with torch.no_grad():
            side.module.layers[1].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    gc.collect()
    own.goes_on()


def test_an_exception_between_forward_and_backward_leaves_nothing_behind(own: Pair) -> None:
    def fail(side: Side) -> None:
        loss = side.forward(DATA[0])
        raise KeyError(loss.item())

    for side in own.sides():
        with pytest.raises(KeyError):
            fail(side)
    gc.collect()
    assert in_use(own.ours.module) == 0
    own.same(partial(Side.step, batch=DATA[0]))
    own.goes_on()
    assert zcompiler.stats(own.ours.model).fallbacks == ()


def test_a_backward_after_a_step_is_refused_like_in_memory(disk: Path) -> None:
    own = pair(disk)
    for side in own.sides():
        waiting = side.forward(DATA[0])
        side.step(DATA[1])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            waiting.backward()
    own.goes_on()


def test_backward_twice_through_a_retained_graph(disk: Path) -> None:
    def twice(side: Side) -> None:
        loss = side.forward(DATA[0])
        loss.backward(retain_graph=True)
        loss.backward()

    # Stock backends give saved tensors away, and refuse a second backward, unless told not to.
    with torch._functorch.config.patch(donated_buffer=False):
        own = pair(disk)
        for _ in range(2):
            own.each(twice)
            own.assert_equal_gradients()


def test_a_retained_graph_needs_no_setting(disk: Path) -> None:
    own = pair(disk)
    loss = own.ours.forward(DATA[0])
    loss.backward(retain_graph=True)
    once = copied(gradients(own.ours.module))
    with pytest.warns(RuntimeWarning, match="gathered outside the schedule"):
        loss.backward()
    assert_equal(gradients(own.ours.module), {name: 2 * grad for name, grad in once.items()}, "gradient of")
