"""`zinf trace`: run a script and record some of its steps."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from zcompiler.training.trace.recorded import Recorded
from zcompiler.training.trace.steps import Window


def trace(script: Path, arguments: Sequence[str], window: Window, output: Path, console: Console) -> int:
    """Run `script` as Python would, record the steps of `window` into `output`, and give back the exit status.

    The file is written when the steps are over, while the script goes on; if it ends sooner, of what there is. What the
    script raises is printed as Python would. ZinfError if nothing was recorded of a script that went well.
    """
    recorded = Recorded(window, lambda done: done.save(output))
    status = 0
    try:
        with recorded, _as_main(script, arguments):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        status = _status(ended)
    except Exception:
        traceback.print_exc()
        status = 1
    if recorded.empty and status:
        return status
    if not recorded.complete:
        recorded.save(output)
        console.print(f"the script ended after {recorded.steps} steps, before step {window.last}", highlight=False)
    console.print(
        f"{output}: open it at ui.perfetto.dev, or make a page of it: zinf report {output}",
        highlight=False,
        soft_wrap=True,
    )
    return status


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """What a script finds in `sys` when Python runs it."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [os.path.dirname(os.path.abspath(script)), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _status(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1
