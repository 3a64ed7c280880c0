"""The examples of docs/plans.md are run, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.conftest import on_a_disk

PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()


def test_the_examples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(on_a_disk(tmp_path))
    examples, shown = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "text"))
    assert len(examples) == 2
    for code, text in zip(examples, shown, strict=True):
        torch._dynamo.reset()  # as for a process of its own
        exec(code, {})
        assert capsys.readouterr().out == text
    assert [f.name for f in tmp_path.iterdir()] == ["plan.json"]
