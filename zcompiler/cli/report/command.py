"""`zinf report`: make the page of a trace, recording it first where a script is given."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from zcompiler.cli.report.page import page
from zcompiler.cli.report.read import read
from zcompiler.cli.trace import trace
from zcompiler.errors import ZinfError
from zcompiler.training.trace.steps import Window


def report(source: Path, arguments: Sequence[str], window: Window, output: Path, console: Console) -> int:
    """Write the page of a trace, or of steps of a script, to `output`; gives back the exit status of the script."""
    if source.suffix == ".py":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            status = trace(source, arguments, window, file, Console(quiet=True))
            if not file.exists():
                return status
            html = page(read(file), source.name)
    else:
        if arguments:
            raise ZinfError(f"{source} is no script (*.py), so it takes no arguments: {' '.join(arguments)}")
        status, html = 0, page(read(source), source.name)
    output.write_text(html, encoding="utf-8")
    console.print(f"{output}: open it in a browser", highlight=False, soft_wrap=True)
    return status
