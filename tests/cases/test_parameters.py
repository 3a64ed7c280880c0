"""Parameters of every form: computed from others, broadcast, of several dtypes, without elements or dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import zcompiler
from tests.cases.both import Batch, assert_moved, inputs, numbers, on_nvme_and_on_host, train, twins
from tests.right.programs import Two
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import Pair, Side, adamw

DATA = inputs(4, 4, 8)


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(9)
    return make()


def changed(own: Pair, change: Callable[[Side], object], batches: Sequence[Batch] = DATA[:2]) -> None:
    """Do this to both, give them new optimizers, and train on."""
    own.each(change)
    for side in own.sides():
        side.optimizer = adamw(side.module.parameters())
    train(own, batches)


# Weights that are computed from others


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).t()


def test_a_parametrization_that_comes_and_goes_while_training(disk: Path) -> None:
    own = twins(disk, built(Two))
    train(own, DATA[:2])

    def come(side: Side) -> None:
        parametrize.register_parametrization(side.module.first, "weight", Symmetric())
        nn.utils.parametrizations.weight_norm(side.module.second)

    def go(side: Side) -> None:
        for layer in side.module.children():
            parametrize.remove_parametrizations(layer, "weight")

    changed(own, come)
    weight = own.ours.module.first.weight
    assert torch.equal(weight, weight.t())
    changed(own, go)
    assert [name for name, _ in own.ours.module.named_parameters()] == [
        name for name, _ in own.theirs.module.named_parameters()
    ]
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_weights_made_in_a_hook_before_forward(disk: Path) -> None:
    """The older weight_norm, and pruning: `.weight` is no parameter but an attribute that a hook sets each time."""

    def hook(side: Side) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(side.module.first)
        prune.l1_unstructured(side.module.second, "weight", amount=0.5)

    own = twins(disk, built(Two))
    changed(own, hook, DATA)
    pruned = own.ours.module.second.weight_mask == 0
    assert pruned.sum() == 32
    changed(own, lambda side: prune.l1_unstructured(side.module.second, "weight", amount=0.5))
    changed(own, lambda side: prune.remove(side.module.second, "weight"))
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


# Parameters that are broadcast


class Broadcast(nn.Module):
    """Only elementwise uses, each of which a placeholder of another shape would survive."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 6, 8))
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.gain = nn.Parameter(torch.randn(8))
        self.column = nn.Parameter(torch.randn(7, 1))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(1, (6, 8)) + self.positions
        x = torch.cat([self.token.expand(len(x), 1, 8), x], dim=1)
        return ((x * self.gain + self.column) * self.scale).square().mean()


@on_nvme_and_on_host
def test_parameters_that_broadcast(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, built(Broadcast), place=place)
    x = numbers(2, 6, 8)

    def read(side: Side) -> torch.Tensor:
        """From outside, in ways in which a placeholder would broadcast."""
        m = side.module
        return ((torch.cat([m.token.expand(2, 1, 8), x + m.positions], 1) * m.gain + m.column) * m.scale).detach()

    train(own, inputs(3, 2, 48), before_step=read)
    own.same(read)
    assert_moved(own, place, "param", "grad", "state")


def test_a_parameter_that_broadcasts_to_other_sizes_of_batch_each_time(disk: Path) -> None:
    own = twins(disk, built(Broadcast))
    train(own, [{"x": numbers(size, 48)} for size in (1, 3, 2, 5, 1)])
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def test_a_layer_whose_output_is_a_broadcast_parameter_alone(disk: Path) -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.layer = nn.Parameter(torch.randn(3, 8)), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            prompt = self.prompt.unsqueeze(0).expand(len(x), -1, -1)
            return self.layer(prompt).square().mean() + x.mean(), prompt, self.prompt[1:]

    own = twins(disk, built(Prompt), backend="aot_eager")

    def backward(side: Side, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss, prompt, part = side.model(**batch)
        total = loss + prompt.square().sum() + part.sum()
        total.backward()
        return torch.cat([total.detach().view(1), prompt.detach().flatten(), part.detach().flatten()])[0]

    train(own, DATA, backward=backward)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


# Several dtypes in one unit


class Adapted(nn.Module):
    """Frozen bfloat16 layers with float32 norms and adapters, all of a layer in one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(2):
            layer = nn.Module()
            layer.base, layer.norm = nn.Linear(9, 9).bfloat16().requires_grad_(False), nn.LayerNorm(9)
            layer.a, layer.b = nn.Parameter(torch.randn(3, 9)), nn.Parameter(torch.zeros(9, 3))
            self.layers.append(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer.norm(layer.base(x.bfloat16()).float() + x @ layer.a.t() @ layer.b.t())
        return x[:, 0].square().mean()


@on_nvme_and_on_host
def test_adapters_in_float32_on_a_frozen_base_in_bfloat16(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, built(Adapted), place=place)
    dtypes = {name: p.dtype for name, p in own.theirs.module.named_parameters()}
    base = own.ours.module.layers[0].base.weight.clone()
    train(own, inputs(4, 4, 9))
    assert zcompiler.schedule(own.ours.model)["graph0"].value("layers.0").dtype == "mixed"
    assert {name: p.dtype for name, p in own.ours.module.named_parameters()} == dtypes
    assert torch.equal(own.ours.module.layers[0].base.weight, base)
    assert {s["exp_avg"].dtype for s in own.ours.optimizer.state.values()} == {torch.float32}
    assert_moved(own, place, "param", "grad", "state")


def test_adapters_that_are_merged_into_the_base_and_go_on(disk: Path) -> None:
    own = twins(disk, built(Adapted))
    train(own, inputs(2, 4, 9))

    @torch.no_grad()
    def merge(side: Side) -> None:
        for layer in side.module.layers:
            layer.base.weight.add_((layer.b @ layer.a).bfloat16())
            layer.b.zero_()
            layer.base.requires_grad_(True)

    changed(own, merge, inputs(2, 4, 9))
    assert {s["exp_avg"].dtype for s in own.ours.optimizer.state.values()} == {torch.float32, torch.bfloat16}
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


class ManyWidths(nn.Module):
    """Elements of eight, four, two and one bytes, of odd counts, so that none but the first begins where it likes."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (torch.bfloat16, torch.float64, torch.float16, torch.complex64, torch.float32)
        self.parts = nn.ParameterList(torch.randn(3, dtype=torch.float32).to(kind) for kind in kinds)
        self.mask = nn.Parameter(torch.tensor([True, False, True]), requires_grad=False)
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = [p.abs().float() if p.is_complex() else p.float() for p in self.parts]
        return (self.layer(x) * torch.stack(weights).sum(0) * self.mask).square().mean()


def test_elements_of_many_widths_in_one_unit(disk: Path) -> None:
    own = twins(disk, built(ManyWidths), partial(torch.optim.AdamW, lr=1e-2, eps=1e-3))  # float16 knows no 1e-8
    dtypes = [p.dtype for p in own.theirs.module.parameters()]
    train(own, DATA)
    assert [p.dtype for p in own.ours.module.parameters()] == dtypes
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


# No elements, no dimensions


class Edges(nn.Module):
    """An empty parameter between others, a 0-dim one, odd sizes, and a last layer without outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 7)
        self.empty = nn.Parameter(torch.empty(0))
        self.odd = nn.Parameter(torch.randn(7, 13))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last = nn.Linear(8, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (self.first(x) * self.scale) @ self.odd
        return hidden.square().mean() + self.empty.sum() + self.last(x).sum()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@on_nvme_and_on_host
def test_parameters_without_elements_and_without_dimensions(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, built(Edges), place=place)
    train(own, DATA)
    shapes = {name: tuple(p.shape) for name, p in own.ours.module.named_parameters()}
    assert shapes == {
        "empty": (0,), "odd": (7, 13), "scale": (), "first.weight": (7, 8), "first.bias": (7,),
        "last.weight": (0, 8), "last.bias": (0,),
    }  # fmt: skip
    assert_moved(own, place, "param", "grad", "state")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_inputs_and_batches_without_rows(disk: Path) -> None:
    class Hollow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.hollow = nn.Linear(8, 8), nn.Linear(0, 8)
            self.nothing = nn.Sequential(nn.Linear(8, 0), nn.Linear(0, 0, bias=False), nn.Linear(0, 8, bias=False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.first(x).tanh() + self.hollow(x[:, :0]) + self.nothing(x)).square().sum()

    own = twins(disk, built(Hollow))
    train(own, [{"x": numbers(rows, 8)} for rows in (4, 0, 4, 0)])
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_norms_and_saved_states_with_empty_parameters(disk: Path) -> None:
    own = twins(disk, built(Edges))
    clip = partial(nn.utils.clip_grad_norm_, max_norm=0.01)
    train(own, DATA[:2], before_step=lambda side: clip(side.module.parameters()))

    def reload(side: Side) -> None:
        side.module.load_state_dict({name: value * 0.5 for name, value in side.module.state_dict().items()})
        side.optimizer.load_state_dict(side.optimizer.state_dict())

    own.each(reload)
    train(own, DATA[:2])
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")
