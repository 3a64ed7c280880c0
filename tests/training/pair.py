"""A model on nvme and its twin in memory, to which the same things are done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.right.models import batches, built, mlp
from tests.right.twins import MakeOptimizer, assert_equal, assert_on_nvme, gradients, loss_of, with_zinf

DATA = batches(mlp, 4)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


@dataclass
class Side:
    """One of the twins: the module, its compiled form, and an optimizer that has seen it."""

    module: torch.nn.Module
    model: Any
    optimizer: torch.optim.Optimizer

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(7)
        return loss_of(self.model(**batch))

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = self.forward(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@dataclass
class Pair:
    ours: Side
    theirs: Side

    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.theirs

    def each(self, act: Callable[[Side], Any]) -> tuple[Any, Any]:
        """Do the same to both; gives back both results."""
        return act(self.ours), act(self.theirs)

    def same(self, act: Callable[[Side], Any]) -> None:
        """Do the same to both, and see the same come out."""
        ours, theirs = self.each(act)
        assert_equal({"result": ours}, {"result": theirs}, "the")

    def assert_equal_weights(self) -> None:
        assert_equal(dict(self.ours.module.named_parameters()), dict(self.theirs.module.named_parameters()), "weight")

    def assert_equal_gradients(self) -> None:
        assert_equal(gradients(self.ours.module), gradients(self.theirs.module), "gradient of")

    def goes_on(self) -> None:
        """The compiled forward sees what both hold now, and a further step is the same."""
        self.assert_equal_weights()
        for batch in DATA[:2]:
            self.same(lambda side, batch=batch: side.step(batch))
        self.assert_equal_weights()


def pair(
    folder: Path,
    module: torch.nn.Module | None = None,
    optimizer: MakeOptimizer = adamw,
    *,
    steps: int = 2,
    backend: str | None = None,
    **options: Any,
) -> Pair:
    """Twins trained for `steps` steps: one on nvme, the other in memory, as it is or compiled with `backend`."""
    module = module if module is not None else built(mlp)
    twin = copy.deepcopy(module)
    ours = with_zinf(module, folder, **options)
    theirs = torch.compile(twin, backend=backend) if backend is not None else twin
    made = Pair(Side(module, ours, optimizer(module.parameters())), Side(twin, theirs, optimizer(twin.parameters())))
    for batch in DATA[:steps]:
        made.same(lambda side, batch=batch: side.step(batch))
    if steps:
        made.assert_equal_weights()
        assert_on_nvme(ours, "param", "state", *(["grad"] if options.get("place", {}).get("grads") == "nvme" else []))
    return made
