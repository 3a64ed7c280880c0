from __future__ import annotations

import copy
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime_ext.nvme.checks import StoreError
from tests.failing import Disk
from tests.right.twins import ALL_ON_NVME, assert_equal, assert_on_nvme, copied, gradients, with_zinf
from tests.training.looks import held_files, in_use
from tests.training.pair import DATA, Side, adamw, pair


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """Turns a wait for ever into a failure."""

    def tell(*_: Any) -> None:
        raise TimeoutError("a step hangs")

    before = signal.signal(signal.SIGALRM, tell)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def assert_short(caught: pytest.ExceptionInfo[StoreError], verb: str, disk: Path) -> None:
    said = str(caught.value)
    assert caught.value.errno == errno.EIO
    for part in (f"{verb} of segment", str(disk), "at offset", "wanted", f"short {verb}"):
        assert part in said


def test_a_short_read_in_forward_is_an_error_and_the_next_step_is_right(failing: Disk, disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME)
    failing.fails.add("read")
    with pytest.raises(StoreError) as caught:
        own.ours.forward(DATA[0])
    assert_short(caught, "read", disk)
    failing.fails.clear()
    assert in_use(own.ours.module) == 0
    own.goes_on()


def test_a_short_read_in_backward_is_an_error_and_the_next_step_is_right(failing: Disk, disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME)
    loss = own.ours.forward(DATA[0])
    failing.fails.add("read")
    with pytest.raises(StoreError) as caught:
        loss.backward()
    assert_short(caught, "read", disk)
    failing.fails.clear()
    assert gradients(own.ours.module) == gradients(own.theirs.module)
    del loss
    assert in_use(own.ours.module) == 0
    own.goes_on()


def test_a_short_write_of_gradients_is_an_error_of_backward(failing: Disk, disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME)
    loss = own.ours.forward(DATA[0])
    failing.fails.add("write")
    with pytest.raises(StoreError) as caught:
        loss.backward()
    assert_short(caught, "write", disk)
    failing.fails.clear()
    assert gradients(own.ours.module) == gradients(own.theirs.module)
    del loss
    own.goes_on()


@pytest.mark.parametrize("verb", ["read", "write"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_failed_transfer_in_an_update_is_an_error_of_that_step_or_of_the_next_call(
    late: bool, verb: str, failing: Disk, disk: Path
) -> None:
    own = pair(disk, late=late)
    own.ours.forward(DATA[0]).backward()
    failing.fails.add(verb)
    if late:
        own.ours.optimizer.step()
    with pytest.raises(StoreError) as caught:
        own.ours.module.layers[0].weight.norm() if late else own.ours.optimizer.step()
    assert_short(caught, verb, disk)
    assert late == any("optimizer step 3" in note for note in getattr(caught.value, "__notes__", ()))
    failing.fails.clear()
    assert in_use(own.ours.module) == 0
    assert all(p.grad is not None for p in own.ours.module.parameters())
    # What was saved before the step is all it takes to go on.
    own.ours.module.load_state_dict(own.theirs.module.state_dict())
    own.ours.optimizer.load_state_dict(own.theirs.optimizer.state_dict())
    own.ours.optimizer.zero_grad()
    own.goes_on()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 to make a small file system with")
    image, folder = tmp_path / "image", tmp_path / "small"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def step(side: Side) -> None:
    side.model(torch.ones(4, 600)).square().mean().backward()
    side.optimizer.step()


def linear(folder: Path, width: int) -> Side:
    module = torch.nn.Sequential(torch.nn.Linear(600, width), torch.nn.Tanh())
    return Side(module, with_zinf(module, folder), adamw(module.parameters()))


def test_weights_that_do_not_fit_on_the_disk_stay_where_they_are(small_disk: Path) -> None:
    side = linear(small_disk, 4000)  # 9.6 MB
    before = copied(dict(side.module.named_parameters()))
    with pytest.raises(StoreError) as caught:
        side.model(torch.ones(4, 600))
    assert caught.value.errno == errno.ENOSPC
    assert str(small_disk) in str(caught.value) and "are free" in str(caught.value)
    assert_equal(dict(side.module.named_parameters()), before, "weight")
    assert held_files(small_disk) == []
    side.module(torch.ones(4, 600)).square().mean().backward()


def test_states_that_do_not_fit_on_the_disk_change_no_weight(small_disk: Path) -> None:
    side = linear(small_disk, 1200)  # 2.9 MB, and twice that for AdamW
    before = copied(dict(side.module.named_parameters()))
    side.model(torch.ones(4, 600)).square().mean().backward()
    grads = copied(gradients(side.module))
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            side.optimizer.step()
        assert caught.value.errno == errno.ENOSPC
        assert_equal(dict(side.module.named_parameters()), before, "weight")
        assert_equal(gradients(side.module), grads, "gradient of")


def test_a_first_step_for_which_the_disk_had_no_room_is_made_when_it_has(small_disk: Path) -> None:
    ours = linear(small_disk, 600)  # 1.4 MB, and twice that for AdamW
    twin = copy.deepcopy(ours.module)
    theirs = Side(twin, torch.compile(twin, backend="aot_eager"), adamw(twin.parameters()))
    for side in (ours, theirs):
        side.model(torch.ones(4, 600)).square().mean().backward()
    filler = small_disk / "others"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free - (2 << 20))
    with pytest.raises(StoreError) as caught:
        ours.optimizer.step()
    assert caught.value.errno == errno.ENOSPC
    filler.unlink()
    for side in (ours, theirs):
        side.optimizer.step()
        side.optimizer.zero_grad()
        step(side)
    assert_equal(dict(ours.module.named_parameters()), dict(theirs.module.named_parameters()), "weight")
    assert_on_nvme(ours.model, "param", "state")
