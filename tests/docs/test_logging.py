"""The program in docs/logging.md logs what the page shows, and its loggers are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "logging.md").read_text()


def settled(text: str) -> list[str]:
    """The lines without what differs from run to run: times, seconds, and the folder."""
    for pattern, instead in ((r"\d\d:\d\d:\d\d\.\d{3}", "TIME"), (r"nvme=\S+", "nvme=DIR"), (r"\d+\.\d s", "SECONDS")):
        text = re.sub(pattern, instead, text)
    return text.strip().splitlines()


def test_the_program_logs_what_the_page_shows(disk: Path) -> None:
    _, (language, code), (_, shown) = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert language == "python"
    env = {**os.environ, "ZINF_LOGS": "info"}
    run = subprocess.run([sys.executable, "-c", code], cwd=disk, env=env, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert settled(run.stderr) == settled(shown) and run.stdout == ""
    assert list(disk.iterdir()) == []


def test_the_loggers_of_the_page_are_those_of_the_code() -> None:
    sources = [path.read_text() for folder in ("zcompiler", "runtime_ext") for path in (ROOT / folder).rglob("*.py")]
    used = {name for text in sources for name in re.findall(r'getLogger\("(zinf\.\w+)"\)', text)}
    assert set(re.findall(r"^\| `(zinf\.\w+)`", PAGE, re.MULTILINE)) == used
