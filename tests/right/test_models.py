from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.models import Make, batches, bert, built, gpt2, llama, mlp
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_on_nvme, assert_same, stock, train, with_zinf

# One after the other on the same model, so that one compile serves both.
OPTIMIZERS = (
    partial(torch.optim.AdamW, lr=1e-3),
    partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
)
STEPS = 3


@pytest.mark.parametrize("make", [gpt2, pytest.param(bert, marks=pytest.mark.full)], ids=lambda make: make.__name__)
def test_training_from_nvme_is_bit_for_bit_training_in_memory(make: Make, disk: Path) -> None:
    data = batches(make, STEPS)
    plain = train(stock(built(make)), OPTIMIZERS, data)
    model = with_zinf(built(make), disk)
    assert_same(train(model, OPTIMIZERS, data), plain)
    assert_on_nvme(model, "param", "state")
    assert zcompiler.stats(model).steps == 2 * STEPS
    assert zcompiler.stats(model).fallbacks == ()


@pytest.mark.parametrize("make", [mlp, pytest.param(llama, marks=pytest.mark.full)], ids=lambda make: make.__name__)
def test_wherever_states_rest_the_numbers_are_the_same(make: Make, disk: Path) -> None:
    data = batches(make, STEPS)
    plain = train(stock(built(make)), OPTIMIZERS, data)
    for place, kinds in (
        (ON_NVME, ("param", "state")),
        (ALL_ON_NVME, ("param", "grad", "state")),
        (ON_HOST, ()),
    ):
        model = with_zinf(built(make), disk, place=place)
        assert_same(train(model, OPTIMIZERS, data), plain)
        assert_on_nvme(model, *kinds)
        assert zcompiler.stats(model).fallbacks == ()
