"""A disk that fails while activations move: an error, nothing lost, and the next step is right."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime_ext.nvme import NvmeStore
from runtime_ext.nvme.checks import StoreError
from runtime_ext.nvme.files import Syscalls
from tests.activations.models import Deep, X
from tests.right.twins import ON_HOST, assert_equal, copied, gradients, moved
from tests.training.looks import in_use
from tests.training.pair import Side, pair


class Disk:
    """The calls of a store; transfers of the kind named in `fails` move less than was wanted."""

    fails = ""

    def preadv(self, descriptor: int, buffers: Any, offset: int) -> int:
        return os.preadv(descriptor, [buffers[0][:512]] if self.fails == "read" else buffers, offset)

    def pwritev(self, descriptor: int, buffers: Any, offset: int) -> int:
        return os.pwritev(descriptor, [buffers[0][:512]] if self.fails == "write" else buffers, offset)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Every store made in the test goes through this disk. Nothing but activations rests on it."""
    disk = Disk()
    calls = Syscalls(preadv=disk.preadv, pwritev=disk.pwritev)
    monkeypatch.setattr("zcompiler.training.session.NvmeStore", partial(NvmeStore, calls=calls))
    return disk


def step(side: Side) -> Any:
    side.model(X[1]).backward()
    made = copied(gradients(side.module))
    side.optimizer.step()
    side.optimizer.zero_grad()
    return made


def test_a_write_that_fails_is_an_error_before_anything_uses_it(failing: Disk, disk: Path) -> None:
    own = pair(disk, Deep(5), steps=0, activations="nvme", place=ON_HOST)
    assert_equal(*own.each(step), "gradient of")
    failing.fails = "write"
    with pytest.raises(StoreError, match="short write"):
        own.ours.model(X[0]).backward()
    failing.fails = ""
    own.ours.optimizer.zero_grad()
    gc.collect()
    assert in_use(own.ours.module) == 0
    assert_equal(*own.each(step), "gradient of")
    assert moved(own.ours.model, "act")[0] > 0


def test_a_backward_whose_read_failed_can_be_run_again(failing: Disk, disk: Path) -> None:
    own = pair(disk, Deep(5), steps=0, activations="nvme", place=ON_HOST)
    loss, plain = own.each(lambda side: side.model(X[0]))
    failing.fails = "read"
    with pytest.raises(StoreError, match="short read"):
        loss.backward(retain_graph=True)
    failing.fails = ""
    own.ours.optimizer.zero_grad()
    loss.backward()
    plain.backward()
    assert_equal(gradients(own.ours.module), gradients(own.theirs.module), "gradient of")
    del loss, plain
    gc.collect()
    assert in_use(own.ours.module) == 0
