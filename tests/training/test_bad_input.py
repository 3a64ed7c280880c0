from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.models import built, mlp
from tests.right.twins import ALL_ON_NVME, assert_equal, copied, with_zinf
from tests.training.pair import DATA, Side, adamw
from zcompiler.options import OptionError


def refused(module: torch.nn.Module, folder: Path, make: Any = adamw, batch: Any = DATA[0], **options: Any) -> Any:
    """The error that a first step raises; nothing has happened to the weights by then."""
    before = copied(dict(module.named_parameters()))
    side = Side(module, with_zinf(module, folder, **options), make(module.parameters()))
    with pytest.raises(Exception) as caught:  # noqa: B017  (which one it is, is what the caller asks)
        side.step(batch)
    assert_equal(dict(module.named_parameters()), before, "weight")
    # Dynamo wraps what a backend raises.
    return getattr(caught.value, "inner_exception", caught.value)


BAD_PATHS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda disk: disk / "nowhere", "does not exist"),
    "a file": (lambda disk: disk / "file", "is a file"),
    "below a file": (lambda disk: disk / "file" / "folder", "lies under something that is a file"),
    "in memory": (lambda disk: Path("/dev/shm"), "is on tmpfs"),
}


@pytest.mark.parametrize("kind", BAD_PATHS)
def test_a_folder_that_cannot_hold_a_store_is_refused_by_name(kind: str, disk: Path) -> None:
    (disk / "file").touch()
    path, why = BAD_PATHS[kind]
    error = refused(built(mlp), path(disk))
    assert isinstance(error, OSError)
    assert str(path(disk)) in str(error)
    assert why in str(error)
    assert not (disk / "nowhere").exists()


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "memory": {"memory": "4 gigs"},
    "memry": {"memry": "4GiB"},
    "place": {"place": {"params": "disk"}},
    "prefetch": {"prefetch": -1},
    "compute": {"compute": "triton"},
    "optimizer": {"optimizer": "Lion"},
}


def test_an_option_that_cannot_be_taken_is_refused_by_name(disk: Path) -> None:
    for name, options in BAD_OPTIONS.items():
        error = refused(built(mlp), disk, **options)
        assert isinstance(error, OptionError)
        assert name in str(error)
        assert repr(list(options.values())[0]) in str(error) or "has no option" in str(error) or name == "place"


class Wide(torch.nn.Module):
    """Three layers of 1 MiB, so that a limit in MiB says something."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


WIDE = {"x": torch.linspace(-1, 1, 64 * 512).reshape(64, 512)}


@pytest.mark.parametrize(
    "place",
    [
        {}, pytest.param(ALL_ON_NVME, marks=pytest.mark.full),
        {"params": "host"}, {"params": "host", "grads": "host", "optimizer": "host"},
    ],
    ids=["auto", "all on nvme", "params on host", "all on host"],
)  # fmt: skip
def test_too_little_memory_is_refused_with_a_number_that_is_enough(place: dict[str, str], disk: Path) -> None:
    error = refused(Wide(), disk, batch=WIDE, memory="100KiB", place=place)
    enough = named_limit(error, "100KiB")
    steps_within(enough, disk, adamw, place)


def test_an_optimizer_that_needs_more_than_was_assumed_is_refused_in_time(disk: Path) -> None:
    make = partial(torch.optim.Adam, lr=1e-2, amsgrad=True)
    error = refused(Wide(), disk, batch=WIDE, memory="100KiB", place=ALL_ON_NVME)
    for _ in range(5):
        enough = named_limit(error, "KiB|MiB")
        try:
            return steps_within(enough, disk, make, ALL_ON_NVME)
        except zcompiler.DoesNotFit:
            error = refused(Wide(), disk, make, batch=WIDE, memory=f"{enough}MiB", place=ALL_ON_NVME)
            assert named_limit(error, "MiB") > enough
    pytest.fail("each number that was named was too small again")


def named_limit(error: Any, given: str) -> int:
    assert isinstance(error, zcompiler.DoesNotFit)
    assert re.search(f"memory=[0-9.]*({given})", str(error))
    found = re.search(r"[Ss]et memory to at least (\d+)MiB", str(error))
    assert found, f"no number to set memory to in: {error}"
    return int(found[1])


def steps_within(limit: int, folder: Path, make: Any, place: dict[str, str]) -> None:
    module = Wide()
    side = Side(module, with_zinf(module, folder, memory=f"{limit}MiB", place=place), make(module.parameters()))
    for _ in range(3):
        side.step(WIDE)
    stats = zcompiler.stats(module)
    assert stats.planned_peak["host"] <= limit << 20
    assert 0 < stats.peak["host"] <= limit << 20
