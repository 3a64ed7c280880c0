"""The same model, limit and machine give the same plan, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import zcompiler
from tests.describe.models import wide, wide_rows

ROOT = Path(__file__).parents[2]


def plans() -> str:
    texts = []
    for memory in ("2500KiB", "3MiB"):
        options = {"memory": memory, "compute": "eager", "machine": "laptop"}
        texts.append(zcompiler.schedule(wide(), wide_rows(), options=options).plans)
    return "".join(texts)


def test_every_process_makes_the_same_plans() -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"from {__name__} import plans; print(plans(), end='')"]
    there = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300).stdout
    text = plans()
    assert there == text
    assert text.count('"zinf-plan": 1') == 2
    assert "params=host grads=host optimizer=nvme" in text and "params=host grads=nvme optimizer=nvme" in text
