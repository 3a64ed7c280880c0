"""The example in docs/activations.md is run, and it prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.printed import printed

PAGE = Path(__file__).parents[2] / "docs" / "activations.md"
PATH = '"nvme": "/path/on/a/disk"'


def test_the_example_prints_what_the_page_shows(disk: Path) -> None:
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code.count(PATH) == 1
    code = code.replace(PATH, f'"nvme": {str(disk)!r}')
    assert printed(code, disk) == shown
