"""16-bit parameters that are updated in float32: as with a float32 copy that a user keeps and rounds himself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, moved, with_zinf
from tests.training.odd import data, odd

PLACES = {"nvme": ON_NVME, "all on nvme": ALL_ON_NVME, "host": ON_HOST}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3, fused=True),
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9),
}


class ByHand:
    """What a user would write: the optimizer holds float32 copies of the parameters."""

    def __init__(self, module: torch.nn.Module, make: Callable[..., torch.optim.Optimizer]) -> None:
        self.parameters = list(module.parameters())
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in self.parameters]
        self.optimizer = make(self.masters)

    def step(self) -> None:
        for p, master in zip(self.parameters, self.masters, strict=True):
            edited = master.detach().to(p.dtype) != p.detach()
            master.data.copy_(torch.where(edited, p.detach().float(), master.detach()))
            master.grad = None if p.grad is None else p.grad.float()
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            if p.grad is not None:
                p.data.copy_(master.detach())
            p.grad = None


def loss_of(model: Any, batch: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return model(batch["x"].to(dtype), batch["labels"].to(dtype))


@pytest.mark.parametrize(
    ("name", "dtype", "place"),
    [
        ("AdamW", torch.bfloat16, "nvme"),
        ("fused AdamW", torch.bfloat16, "all on nvme"),
        ("SGD", torch.float16, "nvme"),
        ("AdamW", torch.float16, "host"),
    ],
)
def test_it_is_what_a_user_would_do_by_hand(name: str, dtype: torch.dtype, place: str, disk: Path) -> None:
    module = odd().to(dtype)
    twin = copy.deepcopy(module)
    model = with_zinf(module, disk, place=PLACES[place], master="float32", memory="8MiB")
    optimizer, by_hand = OPTIMIZERS[name](module.parameters()), ByHand(twin, OPTIMIZERS[name])
    theirs = torch.compile(twin, backend="aot_eager")
    for i, batch in enumerate(data(5)):
        losses = [loss_of(m, batch, dtype) for m in (model, theirs)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        by_hand.step()
        if i == 2:  # an edit counts, in the master copy, too
            for m in (module, twin):
                with torch.no_grad():
                    m.wide.weight[3].mul_(0.5)
        for (key, p), q in zip(module.named_parameters(), twin.parameters(), strict=True):
            assert p.dtype == dtype and torch.equal(p, q), key
    for p, master in zip(module.parameters(), by_hand.masters, strict=True):
        if p.grad is not None or p in optimizer.state:
            held = optimizer.state[p]
            assert torch.equal(held["master"], master)
            assert all(t.dtype == torch.float32 for t in held.values() if t.shape == p.shape)
    read, written = moved(model, "state")
    assert (read > 0 and written > 0) == (place != "host")


def test_training_goes_on_from_saved_masters(disk: Path) -> None:
    module = odd().bfloat16()
    model = with_zinf(module, disk, master="float32", memory="8MiB")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def train(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        for batch in batches:
            loss_of(model, batch, torch.bfloat16).backward()
            optimizer.step()
            optimizer.zero_grad()
        return {k: v.clone() for k, v in module.state_dict().items()}

    batches = data(6)
    train(batches[:3])
    saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    uninterrupted = train(batches[3:])
    module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert all(torch.equal(v, uninterrupted[k]) for k, v in train(batches[3:]).items())


def test_states_that_torch_has_rounded_are_reported(disk: Path) -> None:
    module = odd().bfloat16()
    model = with_zinf(module, disk, master="float32", memory="8MiB")
    first = torch.optim.AdamW(module.parameters(), lr=1e-3)
    loss_of(model, data(1)[0], torch.bfloat16).backward()
    first.step()
    fresh = torch.optim.AdamW(module.parameters(), lr=1e-3)
    fresh.load_state_dict(copy.deepcopy(first.state_dict()))
    with pytest.warns(RuntimeWarning, match="rounded to torch.bfloat16 by load_state_dict"):
        fresh.step()
    assert any("rounded" in fallback for fallback in zcompiler.stats(model).fallbacks)


def test_float32_parameters_are_updated_as_they_are(disk: Path) -> None:
    module = odd()
    model = with_zinf(module, disk, master="float32", memory="8MiB")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    model(**data(1)[0]).backward()
    optimizer.step()
    assert all("master" not in states for states in optimizer.state.values())
