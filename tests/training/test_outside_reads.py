from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.right.twins import assert_equal
from tests.training.pair import DATA, Pair, Side, pair


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """For tests that only look."""
    return pair(tmp_path_factory.mktemp("nvme"), backend="aot_eager")


@pytest.fixture
def own(disk: Path) -> Pair:
    """For a test that changes it."""
    return pair(disk)


def saved_and_loaded(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def of_weights(look: Callable[[torch.nn.Parameter], Any]) -> Callable[[Side], dict[str, Any]]:
    return lambda side: {name: look(p) for name, p in side.module.named_parameters()}


LOOKS: dict[str, Callable[[Side], dict[str, Any]]] = {
    "print": of_weights(repr),
    "norm": of_weights(lambda p: p.norm()),
    "numpy": of_weights(lambda p: p.detach().numpy().tobytes()),
    "tolist": of_weights(lambda p: p.tolist()),
    "item": of_weights(lambda p: p.flatten()[-1].item()),
    "iteration": of_weights(lambda p: [row.sum().item() for row in p]),
    "clone": of_weights(lambda p: p.clone()),
    "bytes of the storage": of_weights(lambda p: bytes(p.untyped_storage())),
    "pickle": of_weights(lambda p: pickle.loads(pickle.dumps(p)).detach()),
    "arithmetic with gradients": of_weights(lambda p: torch.autograd.grad((p * p).sum(), p)[0]),
    "state_dict": lambda side: dict(side.module.state_dict()),
    "state_dict of the compiled form": lambda side: dict(side.model.state_dict()),
    "torch.save": lambda side: saved_and_loaded(side.module),
    "deepcopy": lambda side: dict(copy.deepcopy(side.module).state_dict()),
    "parameters_to_vector": lambda side: {"all": torch.nn.utils.parameters_to_vector(side.module.parameters())},
    "eager forward": lambda side: {"loss": side.module.eval()(**DATA[0])},
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_from_outside_shows_what_training_in_memory_would_show(look: str, trained: Pair) -> None:
    assert_equal(*trained.each(LOOKS[look]), look)


def test_backward_through_the_uncompiled_module_trains_like_in_memory(own: Pair) -> None:
    for side in own.sides():
        torch.manual_seed(3)
        side.module(**DATA[2]).backward()
    own.assert_equal_gradients()
    for side in own.sides():
        side.optimizer.step()
        side.optimizer.zero_grad()
    own.goes_on()


def test_a_deepcopy_has_weights_of_its_own_and_trains_on(own: Pair) -> None:
    copies = own.each(lambda side: copy.deepcopy(side.module))
    with torch.no_grad():
        for p in copies[0].parameters():
            p.zero_()
    own.goes_on()


def test_a_loaded_copy_does_not_follow_the_model(own: Pair) -> None:
    saved = own.each(lambda side: saved_and_loaded(side.module))
    own.goes_on()
    assert_equal(*saved, "saved")


@torch.no_grad()
def edit_in_place(side: Side) -> None:
    for p in side.module.parameters():
        p.mul_(0.5)
        p[0] = 0.25


def replace_data(side: Side) -> None:
    for p in side.module.parameters():
        p.data = p.data.clone().add_(0.125)


def replace_one(side: Side) -> None:
    side.module.layers[1].weight.data = torch.full((13, 13), 0.03125)


def edit_data(side: Side) -> None:
    side.module.layers[0].weight.data.clamp_(-0.1, 0.1)


def edit_through_numpy(side: Side) -> None:
    side.module.layers[0].weight.detach().numpy()[2:] *= 2


def initialize(side: Side) -> None:
    torch.manual_seed(11)
    torch.nn.init.normal_(side.module.layers[2].weight)


def other_weights(side: Side) -> dict[str, torch.Tensor]:
    torch.manual_seed(12)
    return {name: torch.randn_like(value) * 0.1 for name, value in side.module.state_dict().items()}


def load(side: Side) -> None:
    side.module.load_state_dict(other_weights(side))


def vector_to_parameters(side: Side) -> None:
    values = torch.cat([value.flatten() for value in other_weights(side).values()])
    torch.nn.utils.vector_to_parameters(values, side.module.parameters())


EDITS = (
    edit_in_place,
    replace_data,
    replace_one,
    edit_data,
    edit_through_numpy,
    initialize,
    load,
    vector_to_parameters,
)


def test_whatever_a_user_writes_into_a_weight_is_kept_and_seen_by_the_next_forward(own: Pair) -> None:
    for edit in EDITS:
        own.each(edit)
        own.assert_equal_weights()
        own.same(lambda side: side.forward(DATA[0]).detach())
        own.goes_on()


def test_weights_that_a_user_sets_aside_come_back_as_they_were(own: Pair) -> None:
    """What averages of weights do for an evaluation."""
    aside: list[dict[str, torch.Tensor]] = []
    for side in own.sides():
        parameters = dict(side.module.named_parameters())
        aside.append({name: p.data for name, p in parameters.items()})
        for p in parameters.values():
            p.data = torch.full_like(p, 0.03125)
    own.goes_on()
    assert_equal(*aside, "set aside")
    for side, old in zip(own.sides(), aside, strict=True):
        for name, p in side.module.named_parameters():
            p.data = old.pop(name)
    own.goes_on()


def restart_optimizer(side: Side) -> None:
    side.optimizer = type(side.optimizer)(side.module.parameters(), lr=1e-2)


def test_parameters_that_a_user_replaces_by_new_ones_train_on(own: Pair) -> None:
    def assign(side: Side) -> None:
        side.module.load_state_dict(other_weights(side), assign=True)
        restart_optimizer(side)

    def replace(side: Side) -> None:
        side.module.layers[1].weight = torch.nn.Parameter(torch.full((13, 13), 0.03125))
        restart_optimizer(side)

    for change in (assign, replace):
        own.each(change)
        own.goes_on()


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.second(self.first(x).relu()), labels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_model_that_changes_its_dtype_trains_on(dtype: torch.dtype, disk: Path) -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 64), "labels": torch.randn(4, 64)}
    own = pair(disk, Wide(), steps=0)
    own.same(lambda side: side.step(batch))
    batch = {name: value.to(dtype) for name, value in batch.items()}

    def change(side: Side) -> None:
        side.module.to(dtype)
        restart_optimizer(side)

    own.each(change)
    own.assert_equal_weights()
    for _ in range(2):
        own.same(lambda side: side.step(batch))
    own.assert_equal_weights()


def test_a_weight_that_changes_its_shape_in_place_trains_on(disk: Path) -> None:
    """p.data of another shape: what resizing an embedding in place does."""
    torch.manual_seed(0)
    own = pair(disk, torch.nn.Sequential(torch.nn.Linear(6, 2000), torch.nn.ReLU()), steps=0)

    def step(side: Side, x: torch.Tensor) -> torch.Tensor:
        loss = side.model(x).square().mean()
        loss.backward()
        side.optimizer.step()
        side.optimizer.zero_grad()
        return loss.detach()

    def grow(side: Side) -> None:
        torch.manual_seed(1)
        side.module[0].weight.data = torch.randn(3000, 6)
        side.module[0].bias.data = torch.randn(3000)
        restart_optimizer(side)

    own.same(lambda side: step(side, torch.ones(3, 6)))
    own.each(grow)
    own.same(lambda side: step(side, torch.ones(3, 6)))
    own.same(lambda side: step(side, torch.ones(3, 6)))
    own.assert_equal_weights()
