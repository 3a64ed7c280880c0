from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import zcompiler
from tests.right.twins import ALL_ON_NVME, assert_on_nvme
from tests.training.odd import assert_the_same, updated_units
from tests.training.pair import Pair, Side, pair


class Types(nn.Module):
    """Weights of several types, each so wide that it is updated in slices, and of an odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.bf16, self.f16 = nn.Linear(8, 24001, dtype=torch.bfloat16), nn.Linear(24001, 8, dtype=torch.float16)
        self.f64 = nn.Linear(8, 6007, dtype=torch.float64)
        self.c64 = nn.Parameter(torch.randn(20011, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.f16(self.bf16(x.bfloat16()).tanh().half())
        return self.f64(x.double()).square().mean() + self.c64.abs().square().mean()


def built() -> nn.Module:
    torch.manual_seed(0)
    return Types()


@pytest.fixture(scope="module")
def shared(lasting_disk: Path) -> Pair:
    return pair(lasting_disk, built(), steps=0, memory="4MiB", place=ALL_ON_NVME)


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    # An eps that float16 can hold: torch itself divides zero by zero with its own.
    "AdamW": (optim.AdamW, {"eps": 1e-3, "foreach": False}),
    "AdamW foreach": (optim.AdamW, {"eps": 1e-3, "foreach": True, "amsgrad": True}),
    "AdamW fused": (optim.AdamW, {"eps": 1e-3, "fused": True}),
    "SGD": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "NAdam": (optim.NAdam, {"eps": 1e-3}),
    "Adagrad": (optim.Adagrad, {"eps": 1e-3}),
    "Adadelta": (optim.Adadelta, {"eps": 1e-3, "foreach": True}),
    "ASGD": (optim.ASGD, {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_slices_of_every_type_are_updated_bit_for_bit(name: str, shared: Pair) -> None:
    make, settings = FORMS[name]
    for side in shared.sides():
        side.module.load_state_dict(built().state_dict())
        # torch has no fused step for complex parameters
        chosen = [p for p in side.module.parameters() if not (p.is_complex() and "fused" in settings)]
        side.optimizer = make(chosen, lr=1e-3, **settings)
    for step in range(3):
        shared.same(partial(Side.step, batch={"x": torch.linspace(-1, 1, 32).reshape(4, 8)}))
        shared.each(lambda side: side.module.zero_grad())
        assert_the_same(shared)
        if step == 0:
            zcompiler.reset_stats(shared.ours.model)
    assert {"bf16[1]", "f16[1]", "f64[1]"} <= set(updated_units(shared))
    assert_on_nvme(shared.ours.model, "param", "grad", "state")
