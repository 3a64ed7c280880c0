"""Folders that a command makes for its own use, and takes away again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_folders_left(path: Path) -> Iterator[None]:
    """Takes away again those folders down to `path` that are missing now, unless something is in them by then."""
    missing = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]
    try:
        yield
    finally:
        for folder in missing:
            if os.path.isdir(folder) and not any(folder.iterdir()):
                folder.rmdir()
