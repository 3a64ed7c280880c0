"""What a test may look at from outside: the files of a store, the memory a session holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from zcompiler.training.registry import records_of


def held_files(folder: Path, process: int | str = "self") -> list[str]:
    """The files below `folder`, nameless as they are, that a process keeps alive: open ones and mapped ones."""
    found = []
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        try:
            found.append(os.readlink(f"/proc/{process}/fd/{descriptor}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        found += line.split(maxsplit=5)[5:]
    return [path for path in found if path.startswith(str(folder))]


def stored_bytes(folder: Path) -> int:
    """Bytes on the disk of the files below `folder`, nameless as they are, that this process has open."""
    files: dict[int, int] = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
                status = os.fstat(int(descriptor))
                files[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sum(files.values())


def session_of(module: torch.nn.Module) -> Any:
    return records_of(module.parameters())[0].unit.session


def in_use(module: torch.nn.Module) -> int:
    """Bytes that the session of this model holds in its arena."""
    session = session_of(module)
    session.executor.reap()
    return session.runtime.arena(session.compute_tier).in_use
