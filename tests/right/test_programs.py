from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.programs import PLAIN, PROGRAMS, Two
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_equal, assert_on_nvme, copied, gradients, stock, with_zinf


def step(compiled: Any, optimizer: torch.optim.Optimizer, *inputs: Any) -> dict[str, Any]:
    """One step; all numbers that it makes, by name."""
    torch.manual_seed(3)
    outputs = compiled(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs[0].sum().backward()
    made = {f"output {i}": o.detach().clone() if isinstance(o, torch.Tensor) else o for i, o in enumerate(outputs)}
    made |= {f"gradient of {name}": grad for name, grad in copied(gradients(compiled)).items()}
    optimizer.step()
    optimizer.zero_grad()
    return made | copied(dict(compiled.named_parameters())) | copied(dict(compiled.named_buffers()))


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_from_nvme_what_it_computes_in_memory(name: str, disk: Path) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    module = program.make()
    plain = stock(module)
    model = with_zinf(module, disk, place=ALL_ON_NVME)
    optimizers = adamw(model), adamw(plain)
    for i, x in enumerate(program.inputs):
        ours, theirs = (step(m, o, x) for m, o in zip((model, plain), optimizers, strict=True))
        assert_equal(ours, theirs, f"in step {i}, the")
    assert_on_nvme(model, "param", "grad", "state")


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
