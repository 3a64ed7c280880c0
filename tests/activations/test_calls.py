"""What is saved on nvme lives as long as a backward may want it, and no longer."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.activations.models import Deep, Transformer, X, inputs
from tests.right.twins import ALL_ON_NVME, moved, with_zinf
from tests.training.looks import held_files, in_use
from tests.training.pair import Pair, Side, pair


def twins(folder: Path, module: torch.nn.Module, **options: Any) -> Pair:
    return pair(folder, module, steps=0, **{"activations": "nvme", "place": ALL_ON_NVME, **options})


def finish(side: Side, loss: torch.Tensor) -> torch.Tensor:
    """A backward and a step; all weights in one vector."""
    loss.backward()
    side.optimizer.step()
    side.optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in side.module.parameters()])


def seeded(side: Side, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return side.model(x)


def assert_moved(own: Pair) -> None:
    read, written = moved(own.ours.model, "act")
    assert read > 0 and written > 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_two_forwards_in_flight_keep_what_is_theirs(disk: Path) -> None:
    own = twins(disk, Transformer())

    def act(side: Side) -> torch.Tensor:
        first, second = seeded(side, X[0]), seeded(side, X[1])
        third = seeded(side, X[2])
        (second * 2).backward()
        del second
        first.backward()
        return finish(side, third)

    for _ in range(2):
        own.same(act)
    assert_moved(own)


def test_one_backward_of_two_forwards(disk: Path) -> None:
    own = twins(disk, Transformer())
    for _ in range(2):
        own.same(lambda side: finish(side, seeded(side, X[0]) - seeded(side, X[1])))
    assert_moved(own)


@pytest.mark.filterwarnings("ignore:a parameter was gathered outside the schedule:RuntimeWarning")
def test_a_retained_graph_reads_its_values_again(disk: Path) -> None:
    own = twins(disk, Transformer())

    def act(side: Side) -> torch.Tensor:
        kept = seeded(side, X[0])
        kept.backward(retain_graph=True)
        seeded(side, X[1]).backward()  # fills the buffers and, if it could, the room that is still in use
        kept.backward(retain_graph=True)
        return finish(side, kept)

    for _ in range(2):
        own.same(act)
    read, written = moved(own.ours.model, "act")
    assert read == 2 * written > 0


def test_a_forward_whose_backward_never_runs_leaves_nothing_behind(disk: Path) -> None:
    own = twins(disk, Deep(5))
    for x in X[:2]:
        own.same(lambda side, x=x: finish(side, seeded(side, x)))
    before = descriptors(), held_files(disk)
    for x in X * 2:
        own.same(lambda side, x=x: seeded(side, x).detach())
        assert in_use(own.ours.module) == 0
    assert (descriptors(), held_files(disk)) == before
    own.same(lambda side: finish(side, seeded(side, X[1])))
    assert_moved(own)


def test_files_and_descriptors_do_not_grow_with_the_steps(disk: Path) -> None:
    own = twins(disk, Deep(5))
    for x in X[:2]:
        own.same(lambda side, x=x: finish(side, seeded(side, x)))
    before = descriptors(), held_files(disk)
    for x in X * 2:
        own.same(lambda side, x=x: finish(side, seeded(side, x)))
    assert (descriptors(), held_files(disk)) == before
    assert_moved(own)


def test_a_deleted_model_gives_the_room_back_once_its_last_graph_is_gone(disk: Path) -> None:
    before = descriptors()
    model = with_zinf(Deep(5), disk, activations="nvme", place=ALL_ON_NVME)
    model(X[0]).backward()
    kept = model(X[1])
    assert moved(model, "act")[1] > 0
    del model
    gc.collect()
    in_flight = held_files(disk)
    assert in_flight
    assert torch.isfinite(kept)
    del kept
    gc.collect()
    assert held_files(disk) == type(in_flight)()
    assert descriptors() <= before


def test_sequences_of_any_length_take_the_room_they_need(disk: Path) -> None:
    own = twins(disk, Transformer())
    written = []
    for x in inputs(*((2, n, 32) for n in (64, 40, 97, 33, 128, 64))):
        before = sum(written)
        own.same(lambda side, x=x: finish(side, seeded(side, x)))
        written.append(moved(own.ours.model, "act")[1] - before)
    assert written[1] < written[5] < written[4]
    assert written[5] == pytest.approx(written[0], rel=0.1)
    assert zcompiler.stats(own.ours.model).graphs == 2


def test_an_inference_moves_no_activation(disk: Path) -> None:
    own = twins(disk, Deep(4))
    with torch.no_grad():
        own.same(lambda side: seeded(side, X[0]))
    assert moved(own.ours.model, "act") == (0, 0)
    own.same(lambda side: finish(side, seeded(side, X[0])))
    assert_moved(own)
