"""Training the same model twice: with zinf, and with a stock backend that holds everything in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import zcompiler

Batch = Mapping[str, torch.Tensor]
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

ON_NVME = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
ALL_ON_NVME = {"params": "nvme", "grads": "nvme", "optimizer": "nvme"}
ON_HOST = {"params": "host", "grads": "host", "optimizer": "host"}


@dataclass(frozen=True)
class Trace:
    """All numbers of a run: the loss and the gradients of each step, the weights and optimizer states at the end."""

    losses: list[torch.Tensor]
    grads: list[dict[str, torch.Tensor | None]]
    weights: dict[str, torch.Tensor]
    states: list[dict[str, Any]]


def with_zinf(module: torch.nn.Module, folder: Path, **options: Any) -> Any:
    """The compiled form of `module`: eager compute and everything but gradients on nvme, unless `options` differ."""
    chosen = {"memory": "256MiB", "nvme": str(folder), "place": ON_NVME, "compute": "eager", **options}
    return torch.compile(module, backend="zinf", options=chosen)


def stock(module: torch.nn.Module, backend: str = "aot_eager") -> Any:
    """The compiled form of a copy of `module`."""
    return torch.compile(copy.deepcopy(module), backend=backend)


def train(compiled: Any, make_optimizers: Sequence[MakeOptimizer], batches: Sequence[Batch], seed: int = 0) -> Trace:
    """Train over `batches` with each optimizer in turn, from the same random numbers each time this is called."""
    torch.manual_seed(seed)
    losses, grads, states = [], [], []
    for make in make_optimizers:
        optimizer = make(compiled.parameters())
        for batch in batches:
            loss = loss_of(compiled(**batch))
            loss.backward()
            losses.append(loss.detach().clone())
            grads.append(copied(gradients(compiled)))
            optimizer.step()
            optimizer.zero_grad()
        states.append(copy.deepcopy(optimizer.state_dict()["state"]))
    return Trace(losses, grads, copied(dict(compiled.named_parameters())), states)


def loss_of(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.loss


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in module.named_parameters()}


def copied(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
    return {name: None if t is None else t.detach().clone() for name, t in tensors.items()}


def assert_same(zinf: Trace, plain: Trace) -> None:
    """Bit for bit the same, step by step; the first difference is named."""
    assert len(zinf.losses) == len(plain.losses)
    for step, (ours, theirs) in enumerate(zip(zinf.losses, plain.losses, strict=True)):
        assert torch.equal(ours, theirs), f"loss of step {step}: {ours.item()!r} instead of {theirs.item()!r}"
        assert_equal(zinf.grads[step], plain.grads[step], f"gradient in step {step} of")
    assert_equal(zinf.weights, plain.weights, "weight")
    for i, (own, their) in enumerate(zip(zinf.states, plain.states, strict=True)):
        assert own.keys() == their.keys()
        for slot in own:
            assert_equal(own[slot], their[slot], f"state of optimizer {i} for parameter {slot}:")


def assert_equal(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    assert ours.keys() == theirs.keys(), what
    for name, their in theirs.items():
        own = ours[name]
        if not isinstance(their, torch.Tensor):
            assert own == their, f"{what} {name}: {own} instead of {their}"
            continue
        assert own is not None, f"{what} {name} is None"
        assert (own.dtype, own.shape) == (their.dtype, their.shape), f"{what} {name}"
        assert torch.equal(own, their), f"{what} {name} differs by up to {(own - their).abs().max().item()}"


def moved(model: Any, kind: str) -> tuple[int, int]:
    """Bytes of this kind read from nvme and written to it."""
    stats = zcompiler.stats(model)
    return stats.read["nvme"][kind], stats.written["nvme"][kind]


def assert_on_nvme(model: Any, *kinds: str) -> None:
    """These kinds of state really went to the disk and back; a kind that is not named did not move at all."""
    for kind in ("param", "grad", "state"):
        read, written = moved(model, kind)
        if kind in kinds:
            assert read > 0 and written > 0, f"{kind}: {read} B read from nvme, {written} B written"
        else:
            assert (read, written) == (0, 0), f"{kind}: {read} B read from nvme, {written} B written"


def assert_close(zinf: Trace, plain: Trace, relative: float) -> None:
    """The losses differ by rounding alone."""
    for step, (ours, theirs) in enumerate(zip(zinf.losses, plain.losses, strict=True)):
        off = abs(ours.item() / theirs.item() - 1)
        assert off < relative, f"loss of step {step}: {ours.item()!r} instead of {theirs.item()!r}, {off:.1e} off"
