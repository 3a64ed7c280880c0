"""The same model, limit and machine give the same plan, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLANNED = """
import sys, zcompiler
from tests.describe.models import wide, wide_rows
for memory in ("2500KiB", "3MiB"):
    options = {"memory": memory, "compute": "eager", "machine": "laptop"}
    sys.stdout.write(zcompiler.schedule(wide(), wide_rows(), options=options).plans)
"""


def test_every_process_makes_the_same_plans() -> None:
    texts = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PLANNED]
        texts.add(subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300).stdout)
    (text,) = texts
    assert text.count('"zinf-plan": 1') == 2
    assert "params=host grads=host optimizer=nvme" in text and "params=host grads=nvme optimizer=nvme" in text
