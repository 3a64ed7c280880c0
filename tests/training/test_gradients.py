from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.right.twins import ALL_ON_NVME, assert_equal, copied, gradients
from tests.training.pair import DATA, Pair, Side, pair


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    """Twins, with all states of ours on nvme. Each test leaves them equal and without gradients."""
    return pair(lasting_disk, place=ALL_ON_NVME)


@pytest.mark.parametrize("set_to_none", [True, False], ids=["to None", "to zero"])
def test_gradients_of_micro_batches_add_up(set_to_none: bool, shared: Pair) -> None:
    def step(side: Side) -> None:
        for batch in DATA[:3]:
            side.forward(batch).backward()

    for _ in range(2):
        shared.each(step)
        shared.assert_equal_gradients()
        for side in shared.sides():
            side.optimizer.step()
            side.optimizer.zero_grad(set_to_none=set_to_none)
        shared.assert_equal_weights()


def test_a_gradient_that_a_user_keeps_does_not_change_under_him(shared: Pair) -> None:
    for side in shared.sides():
        side.forward(DATA[0]).backward()
    kept = gradients(shared.ours.module)
    values = copied(kept)
    for side in shared.sides():
        side.optimizer.step()
        side.optimizer.zero_grad()
    shared.goes_on()
    assert_equal(kept, values, "kept gradient of")
    shared.each(lambda side: side.forward(DATA[1]).backward())
    shared.assert_equal_gradients()
    assert_equal(kept, values, "kept gradient of")
    shared.each(lambda side: side.optimizer.zero_grad())


def test_what_a_user_does_to_a_gradient_goes_into_the_step(shared: Pair) -> None:
    def clip(side: Side) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(side.module.parameters(), 0.01)

    def scale(side: Side) -> torch.Tensor:
        grad = side.module.layers[0].weight.grad
        grad.mul_(3)
        grad[0] = 0.5
        return grad.norm()

    def replace(side: Side) -> torch.Tensor:
        side.module.layers[1].weight.grad = torch.full((13, 13), 0.25)
        side.module.layers[2].bias.grad = None
        return torch.zeros(())

    for change in (clip, scale, replace):
        for side in shared.sides():
            side.forward(DATA[1]).backward()
        shared.same(change)
        for side in shared.sides():
            side.optimizer.step()
        shared.assert_equal_gradients()
        shared.each(lambda side: side.optimizer.zero_grad())
        shared.assert_equal_weights()


def test_hooks_on_parameters_run(shared: Pair) -> None:
    seen: list[list[float]] = [[], []]
    hooks = []
    for side, norms in zip(shared.sides(), seen, strict=True):
        weight = side.module.layers[1].weight
        hooks.append(weight.register_hook(lambda grad: grad * 0.5))
        hooks.append(
            weight.register_post_accumulate_grad_hook(lambda p, norms=norms: norms.append(p.grad.norm().item()))
        )
    for batch in DATA[:2]:
        shared.same(partial(Side.step, batch=batch))
    shared.assert_equal_weights()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2
    for hook in hooks:
        hook.remove()
