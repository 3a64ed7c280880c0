"""What a disk gives to direct I/O that reads and writes at once, measured on command ("mixed") in a process of its own.

    python -m bench.disk '{"path": "/path/on/a/disk", "mib": 256, "threads": 2}'

Each measurement reads `mib` and writes `mib`, with `threads` of either kind, and answers with bytes and seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.serve import serve
from bench.store import Plain
from zcompiler.cli.calibrate.samples import seconds


def _prepare(settings: dict[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    nbytes = settings["mib"] << 20
    reader, writer = (Plain(Path(settings["path"]), nbytes, settings["threads"]) for _ in range(2))
    for plain in (reader, writer):
        np.frombuffer(plain.memory, np.uint8)[:] = 1  # memory that nobody has touched would be slower the first time
        plain.write()  # and unwritten space is not read from the disk

    def both() -> None:
        Plain.join([*reader.start(os.preadv), *writer.start(os.pwritev)])

    return {"mixed": lambda: {"bytes": 2 * nbytes, "seconds": seconds(both)}}


if __name__ == "__main__":
    serve(_prepare)
