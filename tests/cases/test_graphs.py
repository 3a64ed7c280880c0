"""Models that become several graphs, and graphs that serve several sizes."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import zcompiler
from tests.cases.steps import EVERYWHERE, all_of, assert_moved, finish, same
from tests.right.programs import PLAIN
from tests.right.twins import ALL_ON_NVME, ON_HOST, with_zinf
from tests.training.pair import Pair, Side, adamw


def counted(
    folder: Path, module: nn.Module, place: dict[str, str], dynamic: bool | None = None
) -> tuple[Pair, CompileCounterWithBackend]:
    """Twins, and how many graphs torch makes of the one in memory."""
    twin, counter = copy.deepcopy(module), CompileCounterWithBackend("aot_eager")
    ours = with_zinf(module, folder, place=place)
    if dynamic is not None:
        options = {"memory": "256MiB", "nvme": str(folder), "place": place, "compute": "eager"}
        ours = torch.compile(module, backend="zinf", options=options, dynamic=dynamic)
    theirs = torch.compile(twin, backend=counter, dynamic=dynamic)
    return Pair(Side(module, ours, adamw(module.parameters())), Side(twin, theirs, adamw(twin.parameters()))), counter


def graphs_in_use(counter: CompileCounterWithBackend) -> int:
    """Without those that torch gave up while they were compiled, and emptied."""
    return sum(len(graph.graph.nodes) > 0 for graph in counter.graphs)


def assert_all_listed(own: Pair, counter: CompileCounterWithBackend, compiled: int = 1) -> None:
    """Each graph that torch made has its schedule, and the update has one. `compiled`: how often each may have been
    made: a graph that serves several layers is made again for the second of them, whose parameters come unobserved."""
    schedules = zcompiler.schedule(own.ours.model)
    made = graphs_in_use(counter)
    graphs = sorted(set(schedules) - {"update"})
    assert graphs == [f"graph{i}" for i in range(len(graphs))]
    assert made <= len(graphs) <= compiled * made
    assert zcompiler.stats(own.ours.model).graphs == len(graphs)
    for name in graphs:
        assert any(op.kind == "run" for _, op in schedules[name].ops())


class Branching(nn.Module):
    """Three breaks, one of them a look at a number; `first` and `second` are used in several graphs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).tanh()
        torch._dynamo.graph_break()
        x = self.second(x)
        x = self.third(x) if x.sum().item() > 0 else x @ self.first.weight
        torch._dynamo.graph_break()
        return (x @ self.second.weight).square().mean()


def step(side: Side, x: torch.Tensor) -> dict[str, Any]:
    return finish(side, side.forward({"x": x}))


@EVERYWHERE
def test_breaks_and_branches_become_graphs_that_are_all_listed(place: dict[str, str], disk: Path) -> None:
    own, counter = counted(disk, Branching(), place)
    branches = set()
    for i in range(6):
        side = own.ours
        same(own, partial(step, x=PLAIN[i % 3] * (-1) ** i), f"in step {i}, the")
        with torch.no_grad():
            hidden = side.module.second(side.module.first(PLAIN[i % 3] * (-1) ** i).tanh())
        branches.add(bool(hidden.sum() > 0))
    assert branches == {True, False}, "one branch was never taken"
    assert graphs_in_use(counter) >= 4
    assert_all_listed(own, counter)
    assert_moved(own, place)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x).tanh()
        torch._dynamo.graph_break()
        return self.norm(x)


class Broken(nn.Module):
    """Each layer breaks, so its graphs serve all layers, with other weights each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean() + self.layers[0].linear.weight.cos().mean()


def test_one_graph_that_serves_several_layers_takes_the_weights_of_each(disk: Path) -> None:
    own, counter = counted(disk, Broken(), ALL_ON_NVME)
    for x in (*PLAIN, *PLAIN):
        same(own, partial(step, x=x))
    assert_all_listed(own, counter, compiled=2)
    assert_moved(own, ALL_ON_NVME)


class Across(nn.Module):
    """Views of weights that are made in one graph and used in the next, after the first one's weights are released."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, turned, row = self.first(x), self.second.weight.t(), self.first.weight[2:4]
        torch._dynamo.graph_break()
        x = x.tanh() @ turned
        torch._dynamo.graph_break()
        return (x @ row.t()).square().mean() + turned.sin().mean()


@pytest.mark.filterwarnings("ignore:a region's output that was a view of a gathered parameter:RuntimeWarning")
def test_a_view_of_a_weight_may_cross_a_break(disk: Path) -> None:
    own, counter = counted(disk, Across(), ALL_ON_NVME)
    for x in (*PLAIN, *PLAIN):
        same(own, partial(step, x=x))
    assert_all_listed(own, counter)
    assert_moved(own, ALL_ON_NVME)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(length))


class Mixer(nn.Module):
    """Mixes along the sequence, so that its length is in every shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.weigh, self.last = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x * self.weigh(x).softmax(1)).square().mean()


@pytest.mark.full
@pytest.mark.parametrize("place", [ALL_ON_NVME, ON_HOST], ids=["nvme", "host"])
def test_twelve_lengths_of_an_encoder_layer_need_two_graphs(place: dict[str, str], disk: Path) -> None:
    own, counter = counted(disk, Encoder(), place)
    for length in (7, 12, 5, 9, 16, 3, 11, 8, 14, 4, 13, 6):
        same(own, partial(step, x=tokens(2, length)), f"at length {length}, the")
    assert graphs_in_use(counter) == 2
    assert_all_listed(own, counter)
    assert zcompiler.stats(own.ours.model).fallbacks == ()
    assert_moved(own, place)


def test_batch_and_sequence_vary_down_to_one(disk: Path) -> None:
    own, counter = counted(disk, Mixer(), ALL_ON_NVME)
    for batch, length in ((3, 7), (2, 5), (1, 6), (4, 1), (5, 9), (1, 1), (2, 8)):
        same(own, partial(step, x=tokens(batch, length)), f"for {batch} x {length}, the")
    assert_all_listed(own, counter)
    assert_moved(own, ALL_ON_NVME)


def test_one_graph_is_enough_when_sizes_are_said_to_vary(disk: Path) -> None:
    """Training and evaluation in turn: one graph for each."""
    own, counter = counted(disk, Mixer(), ALL_ON_NVME, dynamic=True)

    def act(side: Side, length: int) -> dict[str, Any]:
        made = step(side, tokens(2, length))
        with torch.no_grad():
            made["evaluated"] = side.forward({"x": tokens(2, length + 1)})
        return made | all_of(side)

    for length in (7, 4, 9, 5):
        same(own, partial(act, length=length), f"at length {length}, the")
    assert graphs_in_use(counter) == 2
    assert_all_listed(own, counter)
    assert_moved(own, ALL_ON_NVME)
