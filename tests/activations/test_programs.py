"""Programs whose saved tensors go to nvme, or are computed again, train bit for bit as in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import zcompiler
from tests.activations.models import PROGRAMS
from tests.right.runs import assert_trains_alike
from tests.right.twins import moved


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_whose_activations_go_to_nvme_trains_as_in_memory(name: str, disk: Path) -> None:
    model = assert_trains_alike(PROGRAMS[name], disk, activations="nvme")
    read, written = moved(model, "act")
    assert read == written > 0
    assert zcompiler.stats(model).fallbacks == ()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_whose_activations_are_computed_again_trains_as_in_memory(name: str, disk: Path) -> None:
    model = assert_trains_alike(PROGRAMS[name], disk, activations="recompute")
    assert moved(model, "act") == (0, 0)


@pytest.mark.parametrize("name", ["layers", "attention and dropout"])
def test_both_at_once_train_as_in_memory(name: str, disk: Path) -> None:
    model = assert_trains_alike(PROGRAMS[name], disk, activations={"layers.0": "nvme", "*": "recompute+nvme"})
    read, written = moved(model, "act")
    assert read == written > 0
