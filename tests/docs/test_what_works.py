"""Each row of docs/what-works.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.right.layers import LAYERS
from tests.right.parameters import PARAMETERS
from tests.right.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "what-works.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what")]
SHORT = {"P": {**PARAMETERS, **LAYERS}, "Q": PROGRAMS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_tests_that_exist(row: str) -> None:
    named = re.findall(r"`(tests/[^`:]+)::(\w+)`", row)
    short = re.findall(r"\b([PQ])\[([^\]]+)\]", row)
    assert named or short
    for file, test in named:
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert test in functions, f"{file} has no {test}"
    for letter, name in short:
        assert name in SHORT[letter], name
