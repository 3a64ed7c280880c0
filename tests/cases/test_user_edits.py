"""What users write into weights between steps: edits, averages, clipping, loading; and what aliases of them see."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import zcompiler
from tests.cases.both import assert_moved, assert_same_states, inputs, numbers, on_nvme_and_on_host, train, twins
from tests.right.twins import ALL_ON_NVME, assert_equal, copied
from tests.training.pair import Pair, Side, adamw

DATA = inputs(4, 4, 8)


class Outputs(nn.Module):
    """Gives three numbers in eval mode and a loss in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(self.first(x).tanh())
        return (x - 1).square().mean() if self.training else x


def outputs() -> nn.Module:
    torch.manual_seed(15)
    return Outputs()


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    return twins(lasting_disk, outputs())


@pytest.fixture
def own(shared: Pair) -> Pair:
    """Twins that have trained, with all of ours on nvme. What a test before did to the weights is undone."""
    for side in shared.sides():
        for p, start in zip(side.module.parameters(), outputs().parameters(), strict=True):
            p.data = start.data.clone()
        side.optimizer = adamw(side.module.parameters())
    train(shared, DATA[:2])
    return shared


@torch.no_grad()
def evaluate(side: Side) -> torch.Tensor:
    side.model.eval()
    result = side.model(DATA[3]["x"])
    side.model.train()
    return result


def goes_on(own: Pair) -> None:
    own.same(evaluate)
    train(own, DATA[:2])
    own.same(evaluate)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


@torch.no_grad()
def multiply(side: Side) -> None:
    for p in side.module.parameters():
        p.mul_(0)


def replace(side: Side) -> None:
    for p in side.module.parameters():
        p.data = torch.zeros_like(p)


def load(side: Side) -> None:
    side.module.load_state_dict({name: torch.zeros_like(v) for name, v in side.module.state_dict().items()})


ZEROING = (multiply, replace, load)


@on_nvme_and_on_host
def test_a_model_of_zeros_with_a_bias_of_seven_says_seven(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, outputs(), place=place)
    for zero in ZEROING:
        train(own, DATA[:2])
        own.each(zero)
        own.each(lambda side: side.module.last.bias.data.fill_(7))
        for side in own.sides():
            assert evaluate(side).tolist() == [[7.0] * 3] * 4
        train(own, DATA[:1])
        assert (own.ours.module.last.bias - 7).abs().max() < 0.1  # no step goes back to what was before the edit
        assert own.ours.module.first.weight.abs().max() < 0.1
    assert_moved(own, place, "param", "grad", "state")


def test_weights_clipped_after_every_step(own: Pair) -> None:
    for batch in DATA:
        train(own, [batch])
        for side in own.sides():
            for p in side.module.parameters():
                p.data.clamp_(-0.0625, 0.0625)
        own.same(evaluate)
        assert max(p.abs().max().item() for p in own.ours.module.parameters()) <= 0.0625
    goes_on(own)


def test_an_edit_between_backward_and_step_is_what_the_step_starts_from(own: Pair) -> None:
    def replace_and_edit(side: Side) -> torch.Tensor:
        side.module.first.weight.data = torch.full((8, 8), 0.25)
        with torch.no_grad():
            side.module.last.weight.mul_(0.5)
        return side.module.first.weight.detach().clone()

    train(own, DATA, before_step=replace_and_edit)
    goes_on(own)


def test_an_average_of_the_weights_beside_training(own: Pair) -> None:
    averages = own.each(lambda side: AveragedModel(side.module, multi_avg_fn=get_ema_multi_avg_fn(0.5)))
    for batch in DATA:
        train(own, [batch])
        for side, average in zip(own.sides(), averages, strict=True):
            average.update_parameters(side.module)
        assert_equal(*(dict(average.state_dict()) for average in averages), "averaged")
    kept = copied(averages[0].state_dict())
    goes_on(own)
    assert_equal(dict(averages[0].state_dict()), kept, "averaged")
    own.each(lambda side: side.module.load_state_dict(averages[side is own.theirs].module.state_dict()))
    goes_on(own)


class Shadow:
    """The average of weights as often written: swapped in by `p.data = ...` to evaluate, and swapped back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.average = {name: p.data.clone() for name, p in module.named_parameters()}
        self.backup: dict[str, torch.Tensor] = {}

    def update(self) -> None:
        for name, p in self.module.named_parameters():
            self.average[name] = (0.5 * p.data + 0.5 * self.average[name]).clone()

    def apply(self) -> None:
        for name, p in self.module.named_parameters():
            self.backup[name] = p.data
            p.data = self.average[name]

    def restore(self) -> None:
        for name, p in self.module.named_parameters():
            p.data = self.backup[name]
        self.backup = {}


def test_an_average_that_is_swapped_in_to_evaluate_and_out_again(own: Pair) -> None:
    shadows = own.each(lambda side: Shadow(side.module))
    for batch in DATA[:3]:
        train(own, [batch])
        trained = copied(dict(own.ours.module.named_parameters()))
        for shadow in shadows:
            shadow.update()
            shadow.apply()
        own.same(evaluate)
        for shadow in shadows:
            shadow.restore()
        assert_equal(dict(own.ours.module.named_parameters()), trained, "trained weight")
        assert_same_states(own)
        assert_equal(*(shadow.average for shadow in shadows), "average")
    goes_on(own)


def test_two_tensors_that_change_places(own: Pair) -> None:
    others = own.each(lambda side: nn.Parameter(torch.full((8, 8), 0.125)))

    def swap() -> None:
        for side, other in zip(own.sides(), others, strict=True):
            weight = side.module.first.weight
            weight.data, other.data = other.data, weight.data

    for _ in range(2):
        swap()
        own.same(evaluate)
        assert torch.equal(*others)
        swap()
        own.same(evaluate)
        assert_equal({"parked": others[0]}, {"parked": torch.full((8, 8), 0.125)}, "the")
        train(own, DATA[:1])
    goes_on(own)


def test_aliases_taken_before_a_weight_is_replaced_keep_the_old_values(own: Pair) -> None:
    before = own.each(lambda side: side.module.state_dict())
    values = copied(before[0])
    own.each(replace)
    goes_on(own)
    assert_equal(dict(before[0]), values, "old")
    assert_equal(*map(dict, before), "old")


def test_a_weight_that_looks_into_a_vector_of_the_user_follows_it(own: Pair) -> None:
    """One vector for all weights, which training and the user write to: as evolution strategies do."""

    def flatten(side: Side) -> torch.Tensor:
        vector = torch.nn.utils.parameters_to_vector(side.module.parameters()).detach().clone()
        torch.nn.utils.vector_to_parameters(vector, side.module.parameters())
        return vector

    vectors = own.each(flatten)
    own.same(evaluate)
    assert any("shares its storage" in said for said in zcompiler.stats(own.ours.model).fallbacks)
    for vector in vectors:
        vector.mul_(0.5)
    own.same(evaluate)
    train(own, DATA[:2])
    assert torch.equal(*vectors)
    own.each(lambda side: torch.nn.utils.vector_to_parameters(torch.zeros(99), side.module.parameters()))
    own.same(evaluate)
    assert torch.equal(*vectors)
    # A vector that nobody keeps does not hold them.
    assert [p.untyped_storage().nbytes() for p in own.ours.module.parameters()] == [256, 32, 96, 12]


def test_a_weight_that_becomes_a_part_of_a_larger_matrix(own: Pair) -> None:
    larger = own.each(lambda side: numbers(16, 16))
    for side, matrix in zip(own.sides(), larger, strict=True):
        side.module.first.weight.data = matrix[4:12, 4:12]
    goes_on(own)
    assert torch.equal(*larger)


def other_weights(side: Side) -> dict[str, torch.Tensor]:
    return {name: value + 1 for name, value in side.module.state_dict().items()}


def in_place(side: Side) -> None:
    side.module.load_state_dict(other_weights(side))


def assigned(side: Side) -> None:
    side.module.load_state_dict(other_weights(side), assign=True)


def through_the_compiled_form(side: Side) -> None:
    side.model.load_state_dict({name: value + 1 for name, value in side.model.state_dict().items()})


def a_part(side: Side) -> None:
    side.module.last.load_state_dict({name: value + 1 for name, value in side.module.last.state_dict().items()})


@torch.inference_mode()
def in_inference_mode(side: Side) -> None:
    side.module.load_state_dict(other_weights(side))


LOADS = (in_place, through_the_compiled_form, a_part, assigned)


@on_nvme_and_on_host
def test_an_eval_after_loading_uses_the_loaded_weights(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, outputs(), place=place)
    train(own, DATA[:2])
    for load in LOADS:
        before = evaluate(own.ours)
        own.same(evaluate)
        own.each(load)
        after = evaluate(own.ours)
        assert not torch.equal(after, before)
        own.same(evaluate)
        own.ours.module.eval()
        assert torch.equal(own.ours.module(DATA[3]["x"]), after)
        own.ours.module.train()
    assert_moved(own, place, "param", "grad", "state")


def test_the_best_weights_are_kept_and_loaded_again(own: Pair) -> None:
    best = own.each(lambda side: copy.deepcopy(side.module.state_dict()))
    looks = own.each(lambda side: side.module.state_dict())  # aliases: loading them changes nothing
    was = evaluate(own.ours)
    goes_on(own)
    assert_equal(*map(dict, looks), "look at")
    own.each(lambda side: side.module.load_state_dict(looks[side is own.theirs]))
    goes_on(own)
    own.each(lambda side: side.module.load_state_dict(best[side is own.theirs]))
    assert torch.equal(evaluate(own.ours), was)
    goes_on(own)


def test_weights_loaded_in_inference_mode_are_used_and_train_on(own: Pair) -> None:
    own.each(in_inference_mode)
    goes_on(own)
