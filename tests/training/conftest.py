from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime_ext.nvme.checks import MEMORY_FILE_SYSTEMS, file_system


@pytest.fixture(scope="module")
def lasting_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like `disk`, for what the tests of a module share."""
    path = tmp_path_factory.mktemp("nvme")
    kind = file_system(path.stat().st_dev)
    if kind in MEMORY_FILE_SYSTEMS:
        pytest.skip(f"{path} is on {kind}, which is memory: give pytest a --basetemp on a disk")
    return path


@pytest.fixture(autouse=True)
def nothing_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Dynamo keeps compiled code by function, so what one test compiled would count against another's limit.

    A module whose tests share a compiled model calls it `shared`.
    """
    yield
    if "shared" not in request.fixturenames:
        torch._dynamo.reset()
