from __future__ import annotations

from pathlib import Path

import pytest

from bench.cgroup import Unavailable, memory_group
from bench.fits import compare, shown


def test_the_kernel_kills_plain_pytorch_and_lets_zinf_finish(tmp_path: Path) -> None:
    try:
        with memory_group("test"):
            pass
    except Unavailable as why:
        pytest.skip(str(why))
    options = {"memory": "64MiB", "compute": "eager", "nvme": str(tmp_path)}
    trials = compare("mlp", tokens=8, steps=3, threads=1, options=options)
    assert all(shown(*trials).values()), trials
    assert not list(tmp_path.iterdir())
