"""What `import zcompiler` does to a process in which others train: nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

Seen = dict[str, dict[str, list[str]]]

ROOT = Path(__file__).parents[2]


IMPORT = "import zcompiler; zcompiler.stats, zcompiler.Stats, zcompiler.schedule"
BACKEND = "import zcompiler.backend"  # what torch does when it first looks the backend up
CHANGES = """
import os, torch, warnings
from torch.optim.optimizer import register_optimizer_step_pre_hook
register_optimizer_step_pre_hook(lambda *_: None)
torch.nn.Module.more = 1
class Mine(torch.optim.SGD): pass
torch._dynamo.config.recompile_limit = 99
torch.set_num_threads(3)
warnings.simplefilter("ignore")
os.environ["MINE"] = "1"
"""


@pytest.fixture(scope="module")
def changes() -> Seen:
    """What each statement changed, as `tests.around.looked` sees it in a process of its own."""
    statements = (IMPORT, BACKEND, CHANGES)
    command = [sys.executable, "-m", "tests.around.looked", *statements]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return dict(zip(statements, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("statement", [IMPORT, BACKEND], ids=["package", "backend"])
def test_an_import_changes_nothing_for_other_models_and_optimizers(statement: str, changes: Seen) -> None:
    assert changes[statement] == {}


def test_the_look_would_see_a_change(changes: Seen) -> None:
    seen = changes[CHANGES]
    assert seen["hooks"] == ["torch.optim.optimizer._global_optimizer_pre_hooks"]
    assert "Module.more" in seen["classes"]
    assert seen["registered"] == ["optimizers"]
    assert seen["config"] == ["torch._dynamo.config.recompile_limit"]
    assert seen["torch"] == ["threads"]
    assert seen["process"] == ["environment", "warnings"]


def test_an_import_brings_no_torch() -> None:
    """So the command line starts at once, and an order of imports that works goes on to work."""
    code = "import sys, zcompiler; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "False\n"
