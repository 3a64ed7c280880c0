"""What every test starts from: one thread, no network, and a home of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from runtime_ext.nvme.checks import MEMORY_FILE_SYSTEMS, file_system
from tests.failing import failing  # noqa: F401 (a fixture)

# Small tensors: more threads only wait for one another, and several tests may run at once. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine makes single examples slow; that is no failure.
settings.register_profile("zinf", deadline=None)
settings.load_profile("zinf")


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps zinf's default folder out of the user's home, and the user's settings out of the test."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.delenv("ZINF_NVME", raising=False)
    return cache


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty directory on a disk."""
    path = on_a_disk(tmp_path) / "nvme"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def lasting_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like `disk`, for what the tests of a module share."""
    return on_a_disk(tmp_path_factory.mktemp("nvme"))


def on_a_disk(path: Path) -> Path:
    kind = file_system(path.stat().st_dev)
    if kind in MEMORY_FILE_SYSTEMS:
        pytest.skip(f"{path} is on {kind}, which is memory: give pytest a --basetemp on a disk")
    return path
