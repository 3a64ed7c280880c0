"""What is described is byte for byte what a real run dumps: plans, each pass of each graph, and the update."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.describe.models import Broken, Deep, Two, rows, tokens
from tests.right.models import batches, decoder, llama
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, loss_of
from tests.training.autocasting import DATA, Autocasting

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def dumped(
    model: torch.nn.Module, inputs: Any, folder: Path, make: MakeOptimizer | None, options: Any
) -> dict[str, str]:
    """The files that option `dump` leaves behind three steps, or without `make` behind one evaluation."""
    compiled = torch.compile(model, backend="zinf", options={**options, "dump": str(folder)})
    optimizer = make(model.parameters()) if make is not None else None
    call = (lambda: compiled(**inputs)) if isinstance(inputs, dict) else (lambda: compiled(*inputs))
    for _ in range(3 if optimizer is not None else 1):
        with torch.set_grad_enabled(optimizer is not None):
            out = call()
        if optimizer is not None:
            loss_of(out).backward()
            optimizer.step()
            optimizer.zero_grad()
            del out
    found = {str(f.relative_to(folder)): f.read_text() for f in sorted(folder.rglob("*.*")) if f.is_file()}
    return found | {"compiled regions": str(zcompiler.stats(model).regions_compiled)}


def described(model: torch.nn.Module, inputs: Any, make: MakeOptimizer | None, options: Any) -> dict[str, str]:
    found = zcompiler.schedule(model, inputs, optimizer=make, options=options, train=make is not None)
    files = {"plan.json": found.plans}
    if found.update is not None:
        files["update/00-final.zsched"] = str(found.update)
    for graph in found.graphs:
        files[f"{graph.name}/plan.txt"] = graph.reasons
        for i, (title, schedule) in enumerate(graph.passes):
            files[f"{graph.name}/{i:02}-{title}.zsched"] = str(schedule)
    return files | {"compiled regions": str(found.compiled)}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def low_weights() -> torch.nn.Module:
    return Deep().to(torch.bfloat16)


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], Any], MakeOptimizer | None, dict[str, Any]]] = {
    "late": (decoder, lambda: batches(decoder, 1)[0], torch.optim.AdamW, {"memory": "4MiB", "place": ALL_ON_NVME}),
    "at once": (Deep, tokens, torch.optim.AdamW, {"memory": "2MiB", "place": ON_NVME, "late": False}),
    "the planner places": (Deep, tokens, torch.optim.AdamW, {"memory": "1000KiB", "optimizer": "AdamW"}),
    "all stays": (Deep, tokens, torch.optim.AdamW, {"memory": "16MiB", "place": ON_HOST}),
    "sgd": (Deep, tokens, sgd, {"memory": "2MiB", "place": ALL_ON_NVME, "optimizer": "SGD"}),
    "inductor": (Two, rows, torch.optim.AdamW, {"memory": "2MiB", "place": ALL_ON_NVME, "compute": "inductor"}),
    "two graphs": (Broken, rows, torch.optim.AdamW, {"memory": "2MiB", "place": ON_NVME}),
    "autocast": (Autocasting, lambda: DATA[0], torch.optim.AdamW, {"memory": "4MiB", "place": ALL_ON_NVME}),
    "master": (low_weights, tokens, torch.optim.AdamW, {"memory": "2MiB", "master": "float32", "place": ON_NVME}),
    "tiles": (Deep, tokens, torch.optim.AdamW, {"memory": "2MiB", "place": ALL_ON_NVME, "tile": {"layers.1": 2}}),
    "activations": (
        Deep, tokens, torch.optim.AdamW,
        {"memory": "2MiB", "place": ALL_ON_NVME, "activations": {"layers.1": "nvme", "layers.[23]": "recompute+nvme"}},
    ),
    "evaluation": (Deep, tokens, None, {"memory": "2MiB", "place": {"params": "nvme"}}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_description_is_what_a_run_dumps(case: str, disk: Path) -> None:
    make, batch, optimizer, own = CASES[case]
    options = {"compute": "eager", "nvme": str(disk), **own}
    model, inputs = make(), batch()
    before = copy.deepcopy(model.state_dict())
    found = described(model, inputs, optimizer, options)
    assert not list(disk.iterdir())  # and the model is as it was
    assert all(type(p) is torch.nn.Parameter and p.grad is None for p in model.parameters())
    assert all(torch.equal(now, before[name]) for name, now in model.state_dict().items())
    folder = disk.parent / "dumped"
    folder.mkdir()
    theirs = dumped(model, inputs, folder, optimizer, options)
    assert list(found) and sorted(found) == sorted(theirs)
    for name, text in theirs.items():
        assert found[name] == text, name


@pytest.mark.full
def test_a_model_on_the_meta_device_is_described_as_the_real_one(disk: Path) -> None:
    options = {"memory": "4MiB", "compute": "eager", "place": ALL_ON_NVME}
    with torch.device("meta"):
        empty = llama()
    batch = batches(llama, 1)[0]
    assert described(empty, batch, torch.optim.AdamW, options) == described(llama(), batch, torch.optim.AdamW, options)
