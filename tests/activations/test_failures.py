"""A disk that fails while activations move: an error, nothing lost, and the next step is right."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from runtime_ext.nvme.checks import StoreError
from tests.activations.models import Deep, X
from tests.failing import Disk
from tests.right.twins import ON_HOST, assert_equal, copied, gradients, moved
from tests.training.looks import in_use
from tests.training.pair import Side, pair


def step(side: Side) -> Any:
    side.model(X[1]).backward()
    made = copied(gradients(side.module))
    side.optimizer.step()
    side.optimizer.zero_grad()
    return made


def test_a_write_that_fails_is_an_error_before_anything_uses_it(failing: Disk, disk: Path) -> None:
    own = pair(disk, Deep(5), steps=0, activations="nvme", place=ON_HOST)
    assert_equal(*own.each(step), "gradient of")
    failing.fails.add("write")
    with pytest.raises(StoreError, match="short write"):
        own.ours.model(X[0]).backward()
    failing.fails.clear()
    own.ours.optimizer.zero_grad()
    gc.collect()
    assert in_use(own.ours.module) == 0
    assert_equal(*own.each(step), "gradient of")
    assert moved(own.ours.model, "act")[0] > 0


def test_a_backward_whose_read_failed_can_be_run_again(failing: Disk, disk: Path) -> None:
    own = pair(disk, Deep(5), steps=0, activations="nvme", place=ON_HOST)
    loss, plain = own.each(lambda side: side.model(X[0]))
    failing.fails.add("read")
    with pytest.raises(StoreError, match="short read"):
        loss.backward(retain_graph=True)
    failing.fails.clear()
    own.ours.optimizer.zero_grad()
    loss.backward()
    plain.backward()
    assert_equal(gradients(own.ours.module), gradients(own.theirs.module), "gradient of")
    del loss, plain
    gc.collect()
    assert in_use(own.ours.module) == 0
