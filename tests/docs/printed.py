"""What the lines of a page print."""

from __future__ import annotations

import contextlib
import gc
import io
import os
from pathlib import Path

import torch


def printed(code: str, folder: Path) -> str:
    """Run them as a program in `folder`, in this process: in a new one importing torch would take longest. What they
    made is gone in the end."""
    torch._dynamo.reset()
    out, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)
        gc.collect()
    return out.getvalue()
