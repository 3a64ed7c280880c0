"""A program trained step by step on both twins, with every number that a step makes compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.right.twins import ALL_ON_NVME, assert_equal, assert_on_nvme, copied, gradients, stock, with_zinf


@dataclass(frozen=True)
class Program:
    """A model, and the inputs of each step; forward gives the loss first."""

    make: Callable[[], torch.nn.Module]
    inputs: Sequence[Any]  # a tuple for a forward that takes several
    backend: str = "aot_eager"  # what the twin in memory runs through


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(compiled: Any, optimizer: torch.optim.Optimizer, *inputs: Any) -> dict[str, Any]:
    """One step; all numbers that it makes, by name."""
    outputs = compiled(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs[0].sum().backward()
    made = {f"output {i}": o.detach().clone() if isinstance(o, torch.Tensor) else o for i, o in enumerate(outputs)}
    made |= {f"gradient of {name}": grad for name, grad in copied(gradients(compiled)).items()}
    optimizer.step()
    optimizer.zero_grad()
    return made | copied(dict(compiled.named_parameters())) | copied(dict(compiled.named_buffers()))


def assert_trains_alike(program: Program, folder: Path, place: dict[str, str] = ALL_ON_NVME, **options: Any) -> Any:
    """Both twins take the program's steps; gives back the model that rests in the store."""
    torch.manual_seed(0)
    module = program.make()
    plain = stock(module, program.backend)
    model = with_zinf(module, folder, place=place, **options)
    optimizers = adamw(model), adamw(plain)
    random = [torch.get_rng_state()] * 2  # each twin draws on from where it stood
    for i, inputs in enumerate(program.inputs):
        made = []
        for side, (m, optimizer) in enumerate(zip((model, plain), optimizers, strict=True)):
            torch.set_rng_state(random[side])
            made.append(step(m, optimizer, *(inputs if isinstance(inputs, tuple) else (inputs,))))
            random[side] = torch.get_rng_state()
        assert_equal(*made, f"in step {i}, the")
        assert torch.equal(*random), f"step {i} left the random stream at another place"
    kinds = {"params": "param", "grads": "grad", "optimizer": "state"}
    assert_on_nvme(model, *(kinds[kind] for kind, home in place.items() if home == "nvme"))
    return model
