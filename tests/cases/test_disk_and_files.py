"""Odd sizes on a real disk, names that are no file names, and several models and processes in one folder."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zcompiler
from tests.cases.child import KINDS, digest
from tests.cases.steps import all_of, assert_moved, finish, same, twins
from tests.right.models import batches, built, mlp
from tests.right.programs import PLAIN, Two
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_equal, copied, stock
from tests.training.looks import held_files
from tests.training.pair import Pair, Side
from zcompiler.schedule.text import parse_schedule

ROOT = Path(__file__).parents[2]


class Vectors(nn.Module):
    """One vector of each size, either all in one unit or each in its own."""

    def __init__(self, sizes: tuple[int, ...], dtypes: tuple[torch.dtype, ...], together: bool) -> None:
        super().__init__()
        torch.manual_seed(12)
        made = [nn.Parameter(torch.randn(size).to(dtype)) for size in sizes for dtype in dtypes]
        self.vectors = nn.ParameterList(made) if together else nn.ModuleList(nn.ParameterList([p]) for p in made)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return sum((p.float() * factor).sin().mean() for p in self.parameters())


def step(side: Side, factor: float) -> dict[str, Any]:
    return finish(side, side.forward({"factor": torch.tensor(factor)}))


def test_sizes_that_fill_no_block_are_read_back_bit_for_bit(disk: Path) -> None:
    sizes, dtypes = (1, 3, 127, 513, 4097, 1048577), (torch.float32, torch.bfloat16)
    own = twins(disk, Vectors(sizes, dtypes, together=True), ALL_ON_NVME)
    for factor in (1.0, 1.5):
        same(own, partial(step, factor=factor))
    assert_moved(own, ALL_ON_NVME)


def test_sizes_around_a_block_are_read_back_bit_for_bit(disk: Path) -> None:
    """A file for each: exactly a block, one element less, one more."""
    sizes, dtypes = (511, 512, 513, 1023, 1024, 1025), (torch.float64, torch.float32, torch.bfloat16)
    own = twins(disk, Vectors(sizes, dtypes, together=False), ALL_ON_NVME)
    for factor in (1.0, 1.5):
        same(own, partial(step, factor=factor))
    assert_moved(own, ALL_ON_NVME)


def test_the_last_element_of_a_part_of_a_block_can_be_edited_from_outside(disk: Path) -> None:
    own = twins(disk, Vectors((1, 127, 4097), (torch.float32, torch.bfloat16), together=True), ALL_ON_NVME)

    @torch.no_grad()
    def edit(side: Side) -> dict[str, Any]:
        for i, p in enumerate(side.module.parameters()):
            p[-1] = 0.5 + i
            side.optimizer.state[p]["exp_avg"][-1] = 0.25
        return all_of(side)

    for factor in (1.0, 1.5, 2.0):
        same(own, partial(step, factor=factor))
        same(own, edit)
    assert_moved(own, ALL_ON_NVME)


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "memory": (lambda disk: Path("/dev/shm"), "is on tmpfs"),
    "a link to memory": (lambda disk: disk / "link to memory", "is on tmpfs"),
    "a link to nothing": (lambda disk: disk / "link to nothing", "does not exist"),
    "a link to a file": (lambda disk: disk / "link to a file", "is a file"),
    "below a link to a file": (lambda disk: disk / "link to a file" / "x", "lies under something that is a file"),
    "a name that is too long": (lambda disk: disk / ("x" * 300), "cannot be looked at"),
}


@pytest.mark.parametrize("place", [ALL_ON_NVME, ON_HOST], ids=["nvme", "host"])
@pytest.mark.parametrize("kind", BAD)
def test_a_folder_that_is_no_folder_on_a_disk_is_refused_even_as_the_second_one(
    kind: str, place: dict[str, str], disk: Path
) -> None:
    """Also when nothing would have to move: what a user says is checked."""
    (disk / "file").touch()
    for link, to in (("memory", "/dev/shm"), ("nothing", disk / "nowhere"), ("a file", disk / "file")):
        (disk / f"link to {link}").symlink_to(to)
    path, why = BAD[kind]
    module = Two()
    before = copied(module.state_dict())
    for nvme in (str(path(disk)), [str(disk), str(path(disk))]):
        model = torch.compile(module, backend="zinf", options={"nvme": nvme, "place": place, "memory": "64MiB"})
        with pytest.raises(Exception, match=why) as caught:
            model(PLAIN[0])
        error = getattr(caught.value, "inner_exception", None)
        assert isinstance(error, OSError)
        assert str(path(disk)) in str(error) and "\n" not in str(error)
        assert_equal(module.state_dict(), before, "weight")
    assert held_files(disk) == []


def nested(names: list[str], leaf: nn.Module) -> nn.Module:
    """`leaf` inside modules of these names, the first outermost."""
    for name in reversed(names):
        outer = nn.Sequential()
        outer.add_module(name, leaf)
        leaf = outer
    return leaf


def test_names_longer_than_a_file_name_may_be(disk: Path, tmp_path: Path) -> None:
    names = [f"a_module_with_a_name_of_which_there_are_six_in_one_another_{i}" for i in range(6)]
    own = twins(disk, nested(names, Two()), ALL_ON_NVME, dump=str(tmp_path / "dump"))
    assert min(len(name) for name, _ in own.ours.module.named_parameters()) > 255
    for x in PLAIN:
        same(own, lambda side, x=x: finish(side, side.model(x)))
    assert_moved(own, ALL_ON_NVME)


class Named(nn.Module):
    """Layers with the names given, one after the other."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        torch.manual_seed(13)
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, after: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            after = getattr(self, name)(after).tanh()
        return after.square().mean()


NAMES = {
    "words of the schedule": [
        "reads",
        "writes",
        "after",
        "for",
        "update",
        "prologue",
        "graph0",
        "region",
        "fwd",
        "whole",
    ],
    "not words at all": ["down/up", "/etc", "a b", "größe", "a_b", "l'x", "a]b[c", 'l"x', "7", "x:2", "x", "#1"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_layers_may_have_any_name_that_torch_takes(kind: str, disk: Path, tmp_path: Path) -> None:
    own = twins(disk, Named(NAMES[kind]), ALL_ON_NVME, dump=str(tmp_path / "dump"))
    for x in PLAIN:
        same(own, lambda side, x=x: finish(side, side.model(x)))
    assert_moved(own, ALL_ON_NVME)
    for schedule in zcompiler.schedule(own.ours.model).values():
        assert parse_schedule(str(schedule)) == schedule
    regions = [r.name for r in zcompiler.schedule(own.ours.model)["graph0"].regions if r.phase == "fwd"]
    assert len(regions) == len(NAMES[kind]), f"not one region for each layer: {regions}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "nvme"]


class Many(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(14)
        self.parts = nn.ParameterList(torch.randn(3) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.stack(list(self.parts)).sin() @ x).square().mean()


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.full)])
def test_one_unit_of_many_parameters(count: int, disk: Path) -> None:
    own = twins(disk, Many(count), ALL_ON_NVME)
    for factor in (1.0, 2.0):
        same(own, lambda side, factor=factor: finish(side, side.model(factor * torch.arange(3.0))))
    assert_moved(own, ALL_ON_NVME)


def test_two_processes_train_in_one_folder_as_each_would_alone(disk: Path) -> None:
    """Their layers have the same names; this one goes on training until the other has ended."""
    command = [sys.executable, "-m", "tests.cases.child", str(disk)]
    own = twins(disk, built(mlp), ALL_ON_NVME)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None:
                for batch in batches(mlp, 3):
                    same(own, lambda side, batch=batch: finish(side, side.forward(batch)))
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert out.split() == [digest(stock(built(mlp))), *KINDS]
    assert_moved(own, ALL_ON_NVME)
    assert list(disk.iterdir()) == []


def test_a_model_that_goes_leaves_the_other_in_its_folder_alone(disk: Path) -> None:
    torch.manual_seed(16)
    stays = twins(disk, Two(), ALL_ON_NVME, memory="66MiB")
    goes: Pair | None = twins(disk, copy.deepcopy(stays.ours.module), ALL_ON_NVME, memory="66MiB")
    for i, x in enumerate((*PLAIN, *PLAIN)):
        same(stays, lambda side, x=x: finish(side, side.model(x)))
        if goes is not None:
            same(goes, lambda side, x=x: finish(side, side.model(x)))
        if i == 2:
            zcompiler.restore(goes.ours.model)
            goes = None
    assert_moved(stays, ALL_ON_NVME)
