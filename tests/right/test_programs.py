from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.programs import PLAIN, PROGRAMS, Two
from tests.right.runs import adamw, assert_trains_alike, step
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_equal, stock, with_zinf


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_from_nvme_what_it_computes_in_memory(name: str, disk: Path) -> None:
    assert_trains_alike(PROGRAMS[name], disk)


def test_inputs_get_their_gradients(disk: Path) -> None:
    module = Two()
    plain = stock(module)
    model = with_zinf(module, disk, place=ALL_ON_NVME)
    inputs = [PLAIN[0].clone().requires_grad_() for _ in range(2)]
    for m, x in zip((model, plain), inputs, strict=True):
        m(x).backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)


def test_a_model_compiled_again_with_other_places_trains_on(disk: Path) -> None:
    module = Two()
    twin = copy.deepcopy(module)
    optimizers = adamw(module), adamw(twin)
    plain = torch.compile(twin, backend="aot_eager")
    for place in (ON_HOST, ALL_ON_NVME, ON_HOST):
        model = with_zinf(module, disk, place=place)
        for x in PLAIN[:2]:
            ours, theirs = (step(m, o, x) for m, o in zip((model, plain), optimizers, strict=True))
            assert_equal(ours, theirs, f"with {place}, the")


def test_past_the_limit_of_recompiles_the_model_still_trains(disk: Path) -> None:
    class Scaled(Two):
        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            return super().forward(x) * scale

    module = Scaled()
    plain = stock(module)
    with torch._dynamo.config.patch(recompile_limit=2, specialize_float=True):
        model = with_zinf(module, disk, place=ALL_ON_NVME)
        optimizers = adamw(model), adamw(plain)
        for scale in (1.5, 2.5, 3.5, 4.5):
            ours, theirs = (step(m, o, PLAIN[0], scale) for m, o in zip((model, plain), optimizers, strict=True))
            assert_equal(ours, theirs, f"with scale {scale}, the")
    assert zcompiler.stats(module).graphs < 4, "no call ran past the limit"
    assert zcompiler.stats(module).steps == 4
