"""The lines of docs/trainer.md are run in order, in one process; only the path in them is another."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.printed import printed

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"
PATH = '"nvme": "/path/on/a/disk"'


def test_the_lines_about_the_trainer_run(disk: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2 and all(block.count(PATH) == 1 for block in blocks)
    nvme = disk / "nvme"
    nvme.mkdir()
    # Nothing is compiled with C++: that would take longer than all else.
    code = "\n".join(blocks).replace(PATH, f'"nvme": {str(nvme)!r}, "compute": "eager"')
    assert "4 steps through zinf" in printed(code, disk)
    saved = {path.name for path in (disk / "checkpoints").iterdir()}
    assert {"checkpoint-2", "checkpoint-4"} <= saved
    assert list(nvme.iterdir()) == []
