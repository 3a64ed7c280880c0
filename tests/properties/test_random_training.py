"""Whatever a small module is and whatever is done to it, it trains as it would in memory, bit for bit."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.properties.described import Run
from tests.properties.strategies import runs
from tests.properties.twins import carry_out

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def check(run: Run, folder: Path) -> None:
    # Sessions are known by their options: a folder of its own keeps each run apart from what is left of others.
    with tempfile.TemporaryDirectory(dir=folder) as own:
        carry_out(run, Path(own))
    gc.collect()


@settings(max_examples=8, derandomize=True, suppress_health_check=CHECKS)
@given(run=runs())
def test_a_run_is_what_it_would_be_in_memory(run: Run, lasting_disk: Path) -> None:
    check(run, lasting_disk)


@pytest.mark.full
@settings(max_examples=500, suppress_health_check=CHECKS)
@given(run=runs())
def test_many_runs_are_what_they_would_be_in_memory(run: Run, lasting_disk: Path) -> None:
    check(run, lasting_disk)
