"""Ctrl-C while an update is late: the step was made in memory, so it is made here, whoever was interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.twins import ALL_ON_NVME, assert_on_nvme
from tests.training.looks import in_use
from tests.training.pair import DATA, Pair, Side, pair
from zcompiler.training.interrupts import uninterrupted
from zcompiler.training.registry import running_updates
from zcompiler.training.slices import UpdateCall


class CtrlC:
    """Comes when the update of the sub-group with this number, counted from now on, has begun; that often."""

    def __init__(self) -> None:
        self.at, self.times = -1, 1

    def __call__(self) -> None:
        self.at -= 1
        for _ in range(self.times if self.at == 0 else 0):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> CtrlC:
    comes, compute = CtrlC(), UpdateCall.compute

    def interrupted(self: UpdateCall, *args: Any) -> None:
        comes()
        compute(self, *args)

    monkeypatch.setattr(UpdateCall, "compute", interrupted)
    return comes


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Python's own, as a shell has SIGINT ignored in what it runs in the background; it is there afterwards, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def forward(side: Side) -> Any:
    return side.forward(DATA[2])


def look(side: Side) -> Any:
    return side.module.layers[0].weight.norm()


def late(folder: Path, **options: Any) -> Pair:
    """Twins that have made a step which ours has still to complete."""
    own = pair(folder, **options)
    own.same(lambda side: side.step(DATA[2]))
    assert running_updates()
    return own


@pytest.mark.parametrize("unit", ["first", "second", "last"])
@pytest.mark.parametrize("interrupted", [forward, look], ids=lambda act: act.__name__)
def test_no_step_is_lost_by_ctrl_c_in_what_follows_it(
    interrupted: Callable[[Side], Any], unit: str, ctrl_c: CtrlC, disk: Path
) -> None:
    own = late(disk, place=ALL_ON_NVME)
    ctrl_c.at = {"first": 1, "second": 2, "last": len(zcompiler.schedule(own.ours.model)["update"].regions)}[unit]
    with pytest.raises(KeyboardInterrupt):
        interrupted(own.ours)
    assert ctrl_c.at == 0
    own.assert_equal_weights()
    assert in_use(own.ours.module) == 0
    own.goes_on()


def test_a_second_ctrl_c_does_not_wait(ctrl_c: CtrlC, disk: Path) -> None:
    own = late(disk)
    ctrl_c.at, ctrl_c.times = 1, 2
    with pytest.raises(KeyboardInterrupt) as caught:
        forward(own.ours)
    assert any("optimizer step 3" in note for note in caught.value.__notes__)
    assert not running_updates()
    assert in_use(own.ours.module) == 0


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_inside_comes_out() -> None:
    with pytest.raises(torch.OutOfMemoryError), uninterrupted():
        raise torch.OutOfMemoryError


@pytest.mark.parametrize("place", [ALL_ON_NVME, {**ALL_ON_NVME, "optimizer": "host"}], ids=["nvme", "host"])
def test_a_first_step_that_ctrl_c_cuts_short_can_be_completed(place: dict[str, str], ctrl_c: CtrlC, disk: Path) -> None:
    own = pair(disk, steps=0, place=place)
    own.same(lambda side: forward_and_backward(side, DATA[0]))
    own.theirs.optimizer.step()
    ctrl_c.at = 2
    with pytest.raises(KeyboardInterrupt):
        own.ours.optimizer.step()
    made = {name: bool(own.ours.optimizer.state[p]) for name, p in own.ours.module.named_parameters()}
    assert set(made.values()) == {True, False}
    for name, p in own.ours.module.named_parameters():
        assert p.grad is not None
        if made[name]:
            assert torch.equal(p, own.theirs.module.get_parameter(name))
            p.grad = None
    own.ours.optimizer.step()
    own.assert_equal_weights()
    own.each(lambda side: side.optimizer.zero_grad())
    own.goes_on()
    assert_on_nvme(own.ours.model, "param", "grad", *(["state"] if place["optimizer"] == "nvme" else []))


def forward_and_backward(side: Side, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss = side.forward(batch)
    loss.backward()
    return loss.detach()
