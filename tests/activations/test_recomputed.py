"""What backward computes again, and what it never does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

import zcompiler
from tests.activations.models import LENGTH, WIDTH, Autocast, Deep, X
from tests.right.runs import Program, assert_trains_alike
from tests.right.twins import ON_HOST, moved, with_zinf

CALLS: list[int] = []


class Layer(nn.Module):
    """A unit of several modules without random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Layers(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def saved(model: Any) -> list[tuple[int, ...] | None]:
    """The shapes of what forward makes and backward reads."""
    schedule = zcompiler.schedule(model)["graph0"]
    made = [n for region, op in schedule.ops() if region.phase == "fwd" for n in op.writes]
    read = {n for region, op in schedule.ops() if region.phase == "bwd" for n in op.reads}
    return [schedule.value(n).shape for n in made if n in read and schedule.value(n).kind == "act"]


def test_of_a_unit_that_is_computed_again_only_its_input_is_saved(disk: Path) -> None:
    kept = with_zinf(Layers(), disk, place=ON_HOST)
    kept(X[0]).backward()
    again = with_zinf(Layers(), disk, place=ON_HOST, activations="recompute")
    again(X[0]).backward()
    assert len(saved(kept)) > 3 * 4
    assert saved(again) == [(2, LENGTH, WIDTH)] * 4  # three inputs of layers, and what the loss squares


class Attention(nn.Module):
    """Written by hand: Inductor puts nodes of its own in the place of a scaled softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(torch.softmax(q @ k.mT / WIDTH, -1) @ v)


def test_what_inductor_puts_in_the_place_of_a_unit_is_computed_again_with_it(disk: Path) -> None:
    class Attentions(Layers):
        def __init__(self) -> None:
            super().__init__(0)
            self.layers = nn.ModuleList(Attention() for _ in range(3))

    module = Attentions()
    twin = copy.deepcopy(module)
    model = with_zinf(module, disk, place=ON_HOST, compute="inductor", activations="recompute")
    loss, theirs = model(X[0]), twin(X[0])
    loss.backward()
    theirs.backward()
    assert saved(model) == [(2, LENGTH, WIDTH)] * 3
    torch.testing.assert_close(loss, theirs, rtol=1e-6, atol=0)
    for own, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-7)


def test_units_that_are_not_named_stay_as_they_are(disk: Path) -> None:
    model = with_zinf(Layers(), disk, place=ON_HOST, activations={"layers.[12]": "recompute"})
    model(X[0]).backward()
    kept = with_zinf(Layers(), disk, place=ON_HOST)
    kept(X[0]).backward()
    a_layer = len(saved(kept)) // 4
    assert 2 * a_layer < len(saved(model)) <= 2 * a_layer + 4


def test_casts_of_parameters_in_checkpointed_layers_are_not_saved(disk: Path) -> None:
    model = with_zinf(Autocast(), disk, place=ON_HOST)
    model(X[0]).backward()
    assert saved(model) == [(2, LENGTH, WIDTH)] * 2


@torch.library.custom_op("zinf_tests::counted", mutates_args=(), schema="(Tensor x) -> Tensor")
def counted(x: torch.Tensor) -> torch.Tensor:
    """An operator of the user's own; who knows what else it does."""
    CALLS.append(x.numel())
    return x.sin()


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


counted.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class Counting(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(counted(self.up(self.norm(x))).exp())


class Outside(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Counting() for _ in range(2))


def test_operators_that_torch_does_not_know_run_once(disk: Path) -> None:
    CALLS.clear()
    assert_trains_alike(Program(Outside, X), disk, activations="recompute")
    assert len(CALLS) == 2 * 2 * len(X)  # two layers, two twins


class Noise(Layer):
    """Random numbers in the middle of a unit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.dropout(nn.functional.gelu(self.up(self.norm(x))), 0.5)
        return x + self.down((y + torch.rand_like(y)).tanh()) * torch.bernoulli(torch.full_like(x, 0.5))


class Noisy(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Noise() for _ in range(3))


def test_random_numbers_are_drawn_once(disk: Path) -> None:
    """The twins' streams stand at the same place after each step, which `assert_trains_alike` sees to."""
    assert_trains_alike(Program(Noisy, X), disk, activations="recompute")


def test_under_inductor_it_trains_as_inductor_does(disk: Path) -> None:
    torch.manual_seed(5)
    module = Deep(4)
    plain = torch.compile(module, backend="inductor")
    theirs = torch.autograd.grad(plain(X[0]), list(module.parameters()))
    model = with_zinf(module, disk, compute="inductor", activations={"layers.1": "nvme", "*": "recompute+nvme"})
    ours = torch.autograd.grad(model(X[0]), list(module.parameters()))
    for own, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-7)
    read, written = moved(model, "act")
    assert read == written > 0
