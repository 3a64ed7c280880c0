"""The lines of docs/tiling.md are run; only the path in them is another, and nothing is compiled with C++."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.twins import assert_on_nvme

PAGE = Path(__file__).parents[2] / "docs" / "tiling.md"
PATH = '"nvme": "/path/on/a/disk",'


def test_the_lines_about_tiling_run(disk: Path) -> None:
    lines, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert lines.count(PATH) == 1
    names: dict[str, Any] = {}
    exec(lines.replace(PATH, f'"nvme": {str(disk)!r}, "compute": "eager",'), names)
    assert_on_nvme(names["model"], "param", "grad", "state")
    regions = [region.name for region in zcompiler.schedule(names["model"])["graph0"].regions]
    assert "fwd/up/7" in regions and "bwd/down/7" in regions
    torch._dynamo.reset()

    with pytest.raises(Exception, match="memory=2MiB is too small"):
        exec(lines.replace(PATH, f'"nvme": {str(disk)!r},').replace(": 8", ": 1"), {})
    torch._dynamo.reset()


def test_the_lines_about_logits_run(disk: Path) -> None:
    _, lines = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert lines.count(PATH) == 1
    names: dict[str, Any] = {"torch": torch}
    exec(lines.replace(PATH, f'"nvme": {str(disk)!r}, "compute": "eager",'), names)
    assert zcompiler.stats(names["model"]).peak["host"] <= 5 << 20
    regions = [region.name for region in zcompiler.schedule(names["model"])["graph0"].regions]
    assert "fwd/head/7" in regions and "bwd/head/7" in regions
    torch._dynamo.reset()

    with pytest.raises(Exception, match="memory=5MiB is too small"):
        exec(lines.replace(PATH, f'"nvme": {str(disk)!r},').replace(": 8", ": 1"), {"torch": torch})
    torch._dynamo.reset()
