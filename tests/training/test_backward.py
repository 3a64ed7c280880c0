from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.right.twins import ALL_ON_NVME, assert_equal, copied, gradients
from tests.training.looks import in_use
from tests.training.pair import DATA, Pair, Side, pair


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    """Twins, with all states of ours on nvme. Each test leaves them equal and without gradients."""
    return pair(lasting_disk, place=ALL_ON_NVME, backend="aot_eager")


def finish(shared: Pair) -> None:
    shared.assert_equal_gradients()
    for side in shared.sides():
        side.optimizer.step()
        side.optimizer.zero_grad()
    shared.goes_on()
    assert in_use(shared.ours.module) == 0


def test_one_backward_of_two_forwards(shared: Pair) -> None:
    for side in shared.sides():
        (side.forward(DATA[0]) + 2 * side.forward(DATA[1])).backward()
    finish(shared)


def test_backwards_in_another_order_than_the_forwards(shared: Pair) -> None:
    for side in shared.sides():
        first, second = side.forward(DATA[0]), side.forward(DATA[1])
        third = side.forward(DATA[2])
        second.backward()
        first.backward()
        third.backward()
    finish(shared)


def test_a_forward_whose_backward_never_runs_gives_its_memory_back(shared: Pair) -> None:
    for side in shared.sides():
        loss = side.forward(DATA[3])
        del loss
    gc.collect()
    assert in_use(shared.ours.module) == 0
    shared.goes_on()


def test_an_update_between_forward_and_another_forward(shared: Pair) -> None:
    """The second forward sees the new weights though the first one's backward has not run."""
    for side in shared.sides():
        side.forward(DATA[0]).backward()
        waiting = side.forward(DATA[1])
        del waiting
        side.optimizer.step()
        side.optimizer.zero_grad()
    shared.goes_on()


def test_gradients_asked_for_by_name(shared: Pair) -> None:
    def ask(side: Side) -> torch.Tensor:
        weights = [layer.weight for layer in side.module.layers]
        return torch.cat([g.flatten() for g in torch.autograd.grad(side.forward(DATA[0]), weights)])

    shared.same(ask)
    assert all(p.grad is None for p in shared.ours.module.parameters())
    shared.goes_on()


def test_a_backward_after_a_weight_was_changed_is_refused_like_in_memory(shared: Pair) -> None:
    for side in shared.sides():
        loss = side.forward(DATA[0])
        with torch.no_grad():
            side.module.layers[1].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    gc.collect()
    shared.goes_on()


def test_an_exception_between_forward_and_backward_leaves_nothing_behind(shared: Pair) -> None:
    def fail(side: Side) -> None:
        loss = side.forward(DATA[0])
        raise KeyError(loss.item())

    for side in shared.sides():
        with pytest.raises(KeyError):
            fail(side)
    gc.collect()
    assert in_use(shared.ours.module) == 0
    shared.same(partial(Side.step, batch=DATA[0]))
    shared.goes_on()


def test_a_backward_after_a_step_is_refused_like_in_memory(shared: Pair) -> None:
    for side in shared.sides():
        waiting = side.forward(DATA[0])
        side.step(DATA[1])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            waiting.backward()
    shared.goes_on()


def test_a_retained_graph_may_run_backward_again(shared: Pair) -> None:
    loss = shared.ours.forward(DATA[0])
    loss.backward(retain_graph=True)
    once = copied(gradients(shared.ours.module))
    with pytest.warns(RuntimeWarning, match="gathered outside the schedule"):
        loss.backward()
    assert_equal(gradients(shared.ours.module), {name: 2 * grad for name, grad in once.items()}, "gradient of")
    for p in shared.ours.module.parameters():
        p.grad = None
    shared.goes_on()
