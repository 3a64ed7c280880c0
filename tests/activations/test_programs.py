"""Programs whose saved tensors go to nvme train bit for bit as in memory."""

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
