from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.models import built, mlp
from tests.right.twins import ALL_ON_NVME, with_zinf
from tests.training.looks import held_files
from tests.training.pair import DATA, pair
from zcompiler.options import OptionError


class Layers(torch.nn.Module):
    """Three layers of 1 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def test_a_step_with_gradients_on_nvme_holds_no_more_than_the_limit(disk: Path) -> None:
    own = pair(disk, Layers(), steps=0, memory="6MiB", place=ALL_ON_NVME)
    for _ in range(3):
        own.ours.step({"x": torch.linspace(-1, 1, 64 * 512).reshape(64, 512)})
    assert zcompiler.stats(own.ours.model).peak["host"] <= 6 << 20


def test_an_error_of_ours_is_inside_the_one_that_torch_raises(disk: Path) -> None:
    model = with_zinf(built(mlp), disk, memory=-1)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="memory") as raised:
        model(**DATA[0])
    assert isinstance(raised.value.inner_exception, OptionError)


class Mixed(torch.nn.Module):
    """A layer in bfloat16 with its normalization in float32, as most large models come."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for _ in range(2):
            layer = torch.nn.Module()
            layer.linear, layer.norm = torch.nn.Linear(9, 9).bfloat16(), torch.nn.LayerNorm(9)
            self.layers.append(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer.norm(layer.linear(x.bfloat16()).float())
        return x[:, 0].square().mean()


def test_a_layer_of_several_dtypes(disk: Path) -> None:
    torch.manual_seed(0)
    own = pair(disk, Mixed(), steps=0)
    for _ in range(3):
        own.same(lambda side: side.step({"x": torch.linspace(-1, 1, 36).reshape(4, 9)}))
    own.assert_equal_weights()


def test_restore_gives_the_store_up(disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME)
    own.ours.forward(DATA[2]).backward()
    assert held_files(disk)
    zcompiler.restore(own.ours.model)
    gc.collect()
    assert held_files(disk) == []
