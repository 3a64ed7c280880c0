"""Updates that go on after `optimizer.step()` has returned: nobody can tell, and what may not be late is not."""

from __future__ import annotations

import copy
import gc
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.models import built, mlp
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_equal, assert_on_nvme, moved
from tests.training.looks import held_files
from tests.training.pair import DATA, Pair, Side, adamw, pair
from zcompiler.training.registry import running_updates


def late(own: Pair) -> int:
    return zcompiler.stats(own.ours.model).late


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    return pair(lasting_disk)


def stepped(own: Pair) -> None:
    """A step of both that leaves our update under way."""
    before = late(own)
    for batch in DATA[:2]:
        own.same(lambda side, batch=batch: side.step(batch))
    assert late(own) == before + 2
    assert running_updates()


def saved(thing: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def of_first(side: Side) -> dict[str, Any]:
    return side.optimizer.state[side.module.layers[0].weight]


def seeded(model: Any) -> torch.Tensor:
    torch.manual_seed(3)
    return model(**DATA[0])


LOOKS: dict[str, Callable[[Side], Any]] = {
    "a norm": lambda side: side.module.layers[1].weight.norm(),
    "the foreach norms": lambda side: torch.stack(torch._foreach_norm(list(side.module.parameters()))),
    "data": lambda side: side.module.layers[0].bias.data.clone(),
    "numpy": lambda side: torch.from_numpy(side.module.layers[0].weight.detach().numpy().copy()),
    "dlpack": lambda side: torch.from_dlpack(side.module.layers[0].weight.detach()).clone(),
    "a list": lambda side: torch.tensor(side.module.layers[2].bias.tolist()),
    "the text": lambda side: str(side.module.layers[0].bias),
    "state_dict": lambda side: side.module.state_dict()["layers.2.weight"].clone(),
    "a copy": lambda side: copy.deepcopy(side.module).layers[0].weight,
    "a copy of the optimizer": lambda side: copy.deepcopy(side.optimizer).state_dict()["state"][0]["exp_avg"],
    "a saved parameter": lambda side: saved(side.module.layers[0].weight),
    "a saved optimizer": lambda side: saved(side.optimizer.state_dict())["state"][5]["exp_avg_sq"],
    "a state": lambda side: of_first(side)["exp_avg"].clone(),
    "a step count": lambda side: of_first(side)["step"].clone(),
    "all states": lambda side: torch.stack([s["step"] for s in side.optimizer.state.values()]),
    "an eager forward": lambda side: seeded(side.module),
    "another graph": lambda side: torch.no_grad()(seeded)(side.model),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_shows_what_a_complete_update_leaves(look: str, shared: Pair) -> None:
    stepped(shared)
    ours, theirs = (LOOKS[look](side) for side in shared.sides())
    if isinstance(ours, str):
        assert ours == theirs
    else:
        assert_equal({look: ours}, {look: theirs}, "")
    assert not running_updates()
    shared.assert_equal_weights()


def test_parameters_look_like_parameters(shared: Pair) -> None:
    stepped(shared)
    p = shared.ours.module.layers[0].weight
    assert isinstance(p, torch.nn.Parameter) and type(p) == torch.nn.Parameter  # noqa: E721
    assert {torch.nn.Parameter: 1}[type(p)] == 1
    assert repr(type(p)) == repr(torch.nn.Parameter)
    assert type(copy.deepcopy(p)) is type(saved(p)) is torch.nn.Parameter
    assert type(p + 1) is type(p.data) is type(p.detach()) is torch.Tensor


def test_new_values_go_straight_to_the_next_forward(disk: Path) -> None:
    read = {}
    for is_late in (True, False):
        own = pair(disk / str(is_late), late=is_late) if (disk / str(is_late)).mkdir() is None else None
        assert own is not None
        zcompiler.reset_stats(own.ours.model)
        for batch in DATA:
            own.same(lambda side, batch=batch: side.step(batch))
        own.assert_equal_weights()
        assert late(own) == is_late * len(DATA)
        read[is_late] = moved(own.ours.model, "param")[0]
    steps, weights = len(DATA), sum(4096 for _ in own.ours.module.parameters())
    assert read[False] - read[True] == (steps - 1) * weights


@pytest.mark.parametrize(
    "place", [ALL_ON_NVME, {"params": "host", "grads": "host", "optimizer": "nvme"}], ids=["all", "optimizer"]
)
def test_wherever_states_rest_late_updates_are_exact(place: dict[str, str], disk: Path) -> None:
    own = pair(disk, steps=0, place=place)
    for batch in DATA * 2:
        own.same(lambda side, batch=batch: side.step(batch))
    assert late(own) == 2 * len(DATA) - 1
    own.assert_equal_weights()
    assert moved(own.ours.model, "state") > (0, 0)


def test_nothing_is_late_where_nothing_moves(disk: Path) -> None:
    own = pair(disk, steps=0, place=ON_HOST)
    for batch in DATA:
        own.same(lambda side, batch=batch: side.step(batch))
    assert late(own) == 0
    assert_on_nvme(own.ours.model)


def zero(side: Side) -> None:
    for p in side.module.parameters():
        assert p.grad is not None
        p.grad.zero_()


ZEROED: dict[str, Callable[[Side], Any]] = {
    "to None": lambda side: side.optimizer.zero_grad(),
    "to zero": lambda side: side.optimizer.zero_grad(set_to_none=False),
    "by the model": lambda side: side.module.zero_grad(),
    "in place": zero,
    "not at all": lambda side: None,
}


@pytest.mark.parametrize("zeroed", ZEROED)
def test_gradients_may_be_changed_after_the_step(zeroed: str, shared: Pair) -> None:
    for batch in DATA:
        shared.same(lambda side, batch=batch: side.forward(batch))
        for side in shared.sides():
            side.forward(batch).backward()
        shared.assert_equal_gradients()
        for side in shared.sides():
            side.optimizer.step()
        assert running_updates()
        for side in shared.sides():
            ZEROED[zeroed](side)
    shared.assert_equal_gradients()
    shared.assert_equal_weights()
    for side in shared.sides():
        side.optimizer.zero_grad()


KEPT: dict[str, Callable[[Side], torch.Tensor]] = {
    "a detached weight": lambda side: side.module.layers[0].weight.detach(),
    "a storage": lambda side: side.module.layers[0].weight.untyped_storage(),  # type: ignore[dict-item, return-value]
    "a state": lambda side: of_first(side)["exp_avg"],
    "all states of a weight": lambda side: of_first(side),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("kept", KEPT)
def test_who_keeps_an_alias_sees_the_step_at_once(kept: str, shared: Pair) -> None:
    stepped(shared)
    alias = KEPT[kept](shared.ours)
    before = late(shared)
    shared.same(lambda side: side.step(DATA[0]))
    assert late(shared) == before and not running_updates()
    if isinstance(alias, torch.Tensor):
        theirs = KEPT[kept](shared.theirs)
        assert torch.equal(alias, theirs)
    shared.assert_equal_weights()
    del alias
    stepped(shared)


def test_a_kept_gradient_may_be_overwritten_after_the_step(shared: Pair) -> None:
    kept = {}
    for side in shared.sides():
        side.forward(DATA[0]).backward()
        kept[id(side)] = [p.grad for p in side.module.parameters()]
        side.optimizer.step()
        for grad in kept[id(side)]:
            grad.fill_(1e3)
        side.optimizer.zero_grad()
    shared.assert_equal_weights()


def test_a_schedule_of_the_learning_rate_counts_from_the_next_step_on(disk: Path) -> None:
    own = pair(disk)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(side.optimizer, 0.5) for side in own.sides()]
    for batch in DATA:
        own.same(lambda side, batch=batch: side.step(batch))
        assert running_updates()
        for scheduler in schedulers:
            scheduler.step()
    own.assert_equal_weights()


def test_an_optimizer_that_is_dropped_leaves_its_step_complete(disk: Path) -> None:
    own = pair(disk)
    for side in own.sides():
        optimizer, side.optimizer = side.optimizer, None  # type: ignore[assignment]
        side.forward(DATA[0]).backward()
        optimizer.step()
        del optimizer
    gc.collect()
    assert not running_updates()
    own.assert_equal_weights()


def test_a_model_that_is_dropped_in_an_update_gives_everything_back(disk: Path) -> None:
    own = pair(disk)
    own.ours.step(DATA[0])
    assert running_updates()
    own.ours = None  # type: ignore[assignment]
    torch._dynamo.reset()
    gc.collect()
    assert not running_updates()
    assert held_files(disk) == []


def test_a_forked_child_sees_the_complete_step(disk: Path) -> None:
    own = pair(disk)
    own.same(lambda side: side.step(DATA[0]))
    assert running_updates()
    child = os.fork()
    if child == 0:
        same = all(
            torch.equal(a, b) for a, b in zip(own.ours.module.parameters(), own.theirs.module.parameters(), strict=True)
        )
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_update_beside_which_a_forward_would_not_fit_is_done_at_once(disk: Path) -> None:
    module = built(mlp)
    own = pair(disk, module, steps=0, memory="796KiB")  # the smallest buffers of an update, and little more
    for batch in DATA:
        many = {name: tensor.repeat_interleave(200, 0) for name, tensor in batch.items()}
        own.same(lambda side, many=many: side.step(many))
    assert late(own) == 0
    own.assert_equal_weights()


def test_sub_groups_come_in_the_order_in_which_forward_needs_them(disk: Path) -> None:
    module = built(mlp)
    own = pair(disk, module, optimizer=lambda ps: adamw(list(ps)[::-1]))
    schedules = zcompiler.schedule(own.ours.model)
    forward = [r.name.removeprefix("fwd/") for r in schedules["graph0"].regions if r.name.startswith("fwd/")]
    update = [r.name.removeprefix("update/") for r in schedules["update"].regions]
    assert update == [name for name in forward if name in update] and len(update) == 3
