"""Every placement of the three kinds of state gives the same numbers, or is refused before the first step."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import zcompiler
from tests.cases.steps import finish, same, twins
from tests.right.models import batches, built, mlp
from tests.right.twins import assert_equal, copied, moved, with_zinf
from tests.training.pair import Pair, Side, adamw

KINDS = ("params", "grads", "optimizer")
PLACES = [dict(zip(KINDS, homes, strict=True)) for homes in itertools.product(("host", "nvme"), repeat=3)]
DATA = batches(mlp, 2)


def label(place: dict[str, str]) -> str:
    return " ".join(f"{kind}={home}" for kind, home in place.items())


def assert_went(own: Pair, place: dict[str, str], states: bool = True) -> None:
    """What rests on nvme went there and back, the rest did not move. Where only gradients do, the optimizer runs as it
    is and looks at them through their mapping, which counts as no read."""
    alone = place == {"params": "host", "grads": "nvme", "optimizer": "host"}
    for what, kind in zip(KINDS, ("param", "grad", "state"), strict=True):
        read, written = moved(own.ours.module, kind)
        on_nvme = place[what] == "nvme" and (states or kind != "state")
        assert (written > 0) == on_nvme, f"{kind} with {label(place)}: {written} B written"
        assert (read > 0) == (on_nvme and not alone), f"{kind} with {label(place)}: {read} B read"


def each_place() -> Iterator[dict[str, str]]:
    """All of them; Dynamo would give up on compiling the same code for so many."""
    for place in PLACES:
        yield place
        torch._dynamo.reset()


def two_steps(side: Side) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for i, batch in enumerate(DATA):
        made |= {f"{name} of step {i}": value for name, value in finish(side, side.forward(batch)).items()}
    return made


def test_each_placement_gives_the_numbers_of_training_in_memory(disk: Path) -> None:
    """First with an optimizer that keeps no states, then with one that does, on the same model."""
    makes = partial(optim.SGD, lr=1e-2), adamw
    module = built(mlp)
    plain = copy.deepcopy(module)
    theirs = torch.compile(plain, backend="aot_eager")
    wanted = [two_steps(Side(plain, theirs, make(plain.parameters()))) for make in makes]
    for place in each_place():
        twin = copy.deepcopy(module)
        ours = with_zinf(twin, disk, place=place)
        for make, numbers in zip(makes, wanted, strict=True):
            side = Side(twin, ours, make(twin.parameters()))
            assert_equal(two_steps(side), numbers, f"with {label(place)}, the")
            assert_went(Pair(side, side), place, states=make is adamw)


class One(nn.Module):
    """A single parameter of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * x).square().mean()


def test_each_placement_takes_a_single_number_as_a_model(disk: Path) -> None:
    for place in each_place():
        own = twins(disk, One(), place)
        for _ in range(2):
            same(own, lambda side: finish(side, side.model(torch.ones(3))), f"with {label(place)}, the")
        assert_went(own, place)


class Layers(nn.Module):
    """A large layer between two small ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(17)
        self.first, self.large, self.last = nn.Linear(8, 600), nn.Linear(600, 600), nn.Linear(600, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.large(self.first(x).tanh()).tanh()).square().mean()


LARGEST = 600 * 601 * 4


def layers_step(side: Side) -> dict[str, Any]:
    return finish(side, side.forward({"x": torch.linspace(-1, 1, 24).reshape(3, 8)}))


@pytest.mark.parametrize(
    "place",
    [pytest.param(p, id=label(p), marks=() if len({*p.values()}) == 1 else pytest.mark.full) for p in PLACES],
)
def test_less_than_the_largest_layer_is_refused_with_what_each_placement_needs(
    place: dict[str, str], disk: Path
) -> None:
    """The number that is named is enough, and the numbers with it are right."""
    module = Layers()
    before = copied(module.state_dict())
    small = LARGEST // 2
    with pytest.raises(Exception, match="memory=") as caught:
        with_zinf(module, disk, memory=small, place=place, tile={})(torch.ones(3, 8))
    error = getattr(caught.value, "inner_exception", None)
    assert isinstance(error, zcompiler.DoesNotFit)
    assert "\n" not in str(error)
    enough = int(re.search(r"Set memory to at least (\d+)MiB", str(error))[1])
    assert enough << 20 >= LARGEST
    for kind in (kind for kind, home in place.items() if home == "host"):
        assert kind in re.search(r"let (.*) rest on nvme", str(error))[1]
    assert_equal(module.state_dict(), before, "weight")
    own = twins(disk, module, place, memory=f"{enough}MiB", tile={})
    for _ in range(2):
        same(own, layers_step)
    assert_went(own, place)
    assert zcompiler.stats(module).peak["host"] <= enough << 20
