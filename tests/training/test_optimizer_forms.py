from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import zcompiler
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_equal, assert_on_nvme, moved
from tests.training.odd import MEMORY, assert_the_same, data, odd, states
from tests.training.pair import Pair, Side, pair
from zcompiler.options import OPTIMIZER_STATES


@pytest.fixture(scope="module")
def twins(lasting_disk: Path) -> Pair:
    """For optimizers to follow one another on them."""
    made = pair(lasting_disk, odd(), steps=0, memory=MEMORY, place=ALL_ON_NVME)
    made.same(partial(Side.step, batch=data(1)[0]))
    return made


@pytest.fixture
def shared(twins: Pair) -> Pair:
    restart(twins)
    return twins


def restart(twins: Pair) -> None:
    """The weights of the beginning, and no gradients."""
    for side in twins.sides():
        side.module.load_state_dict(odd().state_dict())
        side.module.zero_grad()


# What a class may be asked for beside its defaults; each is taken where the class has it.
SWITCHES: dict[str, Any] = {
    "weight_decay": 0.1,
    "amsgrad": True,
    "maximize": True,
    "momentum": 0.9,
    "nesterov": True,
    "centered": True,
    "decoupled_weight_decay": True,
    "lr_decay": 0.1,
}


def forms(name: str) -> Iterator[dict[str, Any]]:
    """The settings a class is tried with: each implementation it has, with its defaults and with all switches on."""
    known = inspect.signature(getattr(optim, name)).parameters
    switches = {key: value for key, value in SWITCHES.items() if key in known}
    implementations: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}]
    if "fused" in known:
        implementations.append({"fused": True})
    for chosen, implementation in product(({}, switches), implementations):
        yield {"lr": 1e-2, **chosen, **implementation}
    if "nesterov" in known:
        yield {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "foreach": True}
        yield {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "fused": True}
    yield {"lr": torch.tensor(1e-2), "foreach": False}


def step_and_keep(side: Side, batch: dict[str, torch.Tensor]) -> None:
    side.optimizer.zero_grad()
    side.forward(batch).backward()
    side.optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZER_STATES)
def test_every_form_of_a_streamed_class_updates_bit_for_bit(name: str, shared: Pair) -> None:
    for settings in forms(name):
        restart(shared)
        for side in shared.sides():
            own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
            side.optimizer = getattr(optim, name)(side.module.parameters(), **own)
        zcompiler.reset_stats(shared.ours.model)
        for batch in data(2):
            shared.each(partial(step_and_keep, batch=batch))
            assert_equal(*(flat(side) for side in shared.sides()), f"with {settings}, the")
        read, written = moved(shared.ours.model, "state")
        kept = [value for state in shared.theirs.optimizer.state.values() for value in state.values()]
        stateful = any(isinstance(value, torch.Tensor) and value.dim() for value in kept)
        assert (read > 0, written > 0) == (stateful, stateful), f"with {settings}"
        assert moved(shared.ours.model, "grad")[0] > 0, f"with {settings}"
    assert zcompiler.stats(shared.ours.model).fallbacks == ()


def flat(side: Side) -> dict[str, Any]:
    """Weights, gradients and states."""
    weights = {f"weight {name}": p for name, p in side.module.named_parameters()}
    return weights | {f"gradient of {n}": p.grad for n, p in side.module.named_parameters()} | states(side)


def matrices(parameters: Any) -> list[torch.nn.Parameter]:
    return [p for p in parameters if p.dim() == 2]


class Own(optim.Optimizer):
    """A class that torch does not know."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("sum", torch.zeros_like(p)).add_(p.grad)
                    p.sub_(self.state[p]["sum"] / (1 + p.norm()), alpha=group["lr"])


AS_THEY_ARE: dict[str, Callable[[Any], optim.Optimizer]] = {
    "Adafactor": partial(optim.Adafactor, lr=1e-2),
    "Muon": lambda parameters: optim.Muon(matrices(parameters), lr=1e-2),
    "LBFGS": partial(optim.LBFGS, lr=0.1, max_iter=3),
    "Own": Own,
}


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_any_other_class_runs_as_it_is_and_says_so_once(name: str, shared: Pair) -> None:
    for side in shared.sides():
        side.optimizer = AS_THEY_ARE[name](side.module.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in data(3):
            shared.same(partial(step_with_closure, batch=batch))
            shared.assert_equal_weights()
    said = [str(w.message) for w in caught if re.search(rf"{name}.* runs as it is", str(w.message))]
    assert len(said) == 1, [str(w.message) for w in caught]
    assert said[0] in zcompiler.stats(shared.ours.model).fallbacks
    if name != "LBFGS":
        assert_equal(*shared.each(states), "optimizer's")


def step_with_closure(side: Side, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    def closure() -> torch.Tensor:
        side.optimizer.zero_grad()
        loss = side.forward(batch)
        loss.backward()
        return loss

    if isinstance(side.optimizer, optim.LBFGS):
        return side.optimizer.step(closure).detach()
    loss = closure()
    side.optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "NAdam"])
def test_what_torch_refuses_on_a_cpu_is_refused_in_its_words(name: str, shared: Pair) -> None:
    said = []
    for side in shared.sides():
        side.optimizer = getattr(optim, name)(side.module.parameters(), capturable=True)
        side.forward(data(1)[0]).backward()
        with pytest.raises(AssertionError, match="capturable") as caught:
            side.optimizer.step()
        said.append(str(caught.value))
        side.optimizer.zero_grad()
    assert said[0] == said[1]
    shared.assert_equal_weights()


def test_a_tensor_as_learning_rate_may_change_between_steps(shared: Pair) -> None:
    rates = [torch.tensor(1e-2), torch.tensor(1e-2)]
    for side, rate in zip(shared.sides(), rates, strict=True):
        side.optimizer = optim.AdamW(side.module.parameters(), lr=rate, fused=True)
    for factor, batch in zip((1.0, 3.0, 0.0), data(3), strict=True):
        for rate in rates:
            rate.mul_(factor)
        shared.same(partial(Side.step, batch=batch))
        assert_the_same(shared)


def test_a_group_that_stands_still_and_an_empty_one(shared: Pair) -> None:
    for side in shared.sides():
        still = list(side.module.first.parameters())
        rest = [p for name, p in side.module.named_parameters() if not name.startswith("first")]
        side.optimizer = optim.AdamW([{"params": still, "lr": 0.0}, {"params": []}, {"params": rest, "lr": 1e-2}])
    before = shared.ours.module.first.weight.detach().clone()
    for batch in data(2):
        shared.same(partial(Side.step, batch=batch))
        assert_the_same(shared)
    assert torch.equal(shared.ours.module.first.weight, before)


SCHEDULES: dict[str, Callable[[optim.Optimizer], Any]] = {
    "cosine": partial(optim.lr_scheduler.CosineAnnealingLR, T_max=4),
    "one cycle, of the momentum too": partial(optim.lr_scheduler.OneCycleLR, max_lr=0.02, total_steps=6),
    "on a plateau": partial(optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5),
    "by a function": partial(optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_schedules_are_followed_and_nothing_is_compiled_again(kind: str, shared: Pair) -> None:
    for side in shared.sides():
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        side.optimizer = getattr(optim, kind)(side.module.parameters(), lr=1e-2, **settings)
    shared.same(partial(Side.step, batch=data(1)[0]))
    compiled = frames_compiled()
    for make in SCHEDULES.values():
        schedules = shared.each(lambda side, make=make: make(side.optimizer))
        for batch in data(3):
            shared.same(partial(Side.step, batch=batch))
            for schedule in schedules:
                schedule.step(*([1.0] if isinstance(schedule, optim.lr_scheduler.ReduceLROnPlateau) else []))
        assert_the_same(shared)
    assert frames_compiled() == compiled


def frames_compiled() -> int:
    return torch._dynamo.utils.counters["frames"]["ok"]


def test_a_group_is_added_midway(shared: Pair) -> None:
    for side in shared.sides():
        side.optimizer = optim.AdamW(side.module.first.parameters(), lr=1e-2)
    shared.same(partial(Side.step, batch=data(1)[0]))
    for side in shared.sides():
        side.optimizer.add_param_group({"params": list(side.module.wide.parameters()), "lr": 1e-3})
    for batch in data(2):
        shared.same(partial(Side.step, batch=batch))
        assert_the_same(shared)


def test_states_of_a_run_in_memory_are_loaded_and_given_to_one(shared: Pair) -> None:
    """Each side goes on from what the other has saved, as it stands and through a file's copy."""
    for side in shared.sides():
        side.optimizer = optim.AdamW(side.module.parameters(), lr=1e-2)
    for batch in data(2):
        shared.same(partial(Side.step, batch=batch))
    saved = [side.optimizer.state_dict() for side in shared.sides()]
    for side, other in zip(shared.sides(), reversed(saved), strict=True):
        side.optimizer = optim.AdamW(side.module.parameters(), lr=0.5)
        side.optimizer.load_state_dict(clones(other))
    for batch in data(2):
        shared.same(partial(Side.step, batch=batch))
        assert_the_same(shared)
    assert_equal(*(flat_states(s) for s in saved), "what was saved of the")


def clones(saved: Any) -> Any:
    if isinstance(saved, dict):
        return {key: clones(value) for key, value in saved.items()}
    return saved.clone() if isinstance(saved, torch.Tensor) else saved


def flat_states(saved: dict[str, Any]) -> dict[str, Any]:
    return {f"{slot}.{key}": v for slot, state in saved["state"].items() for key, v in state.items()}


def test_two_optimizers_of_the_same_parameters_keep_states_of_their_own(shared: Pair) -> None:
    both = shared.each(lambda side: [optim.Adam(side.module.parameters(), lr=r, amsgrad=True) for r in (1e-2, 1e-3)])
    for batch, turn in zip(data(4), (0, 1, 0, 1), strict=True):
        for side, optimizers in zip(shared.sides(), both, strict=True):
            side.optimizer = optimizers[turn]
            side.step(batch)
        for turn_of in (0, 1):
            for side, optimizers in zip(shared.sides(), both, strict=True):
                side.optimizer = optimizers[turn_of]
            assert_the_same(shared)


def test_what_was_saved_of_one_optimizer_stays_when_the_next_one_steps(shared: Pair) -> None:
    for side in shared.sides():
        side.optimizer = optim.AdamW(side.module.parameters(), lr=1e-2)
    shared.same(partial(Side.step, batch=data(1)[0]))
    saved = [side.optimizer.state_dict() for side in shared.sides()]
    for side in shared.sides():
        side.optimizer = optim.AdamW(side.module.parameters(), lr=1e-2)
    for batch in data(2):
        shared.same(partial(Side.step, batch=batch))
    assert_equal(*(flat_states(s) for s in saved), "saved")
    assert_the_same(shared)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_with_host_homes_no_byte_moves(name: str, disk: Path) -> None:
    made = pair(disk, odd(), partial(getattr(optim, name), lr=1e-2), steps=0, place=ON_HOST)
    for batch in data(3):
        made.same(partial(Side.step, batch=batch))
    assert_the_same(made)
    assert_on_nvme(made.ours.model)
