"""A folder for the store."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from zcompiler.cli.doctor.found import Disk
from zcompiler.cli.doctor.rows import Row, size

KNOWN = ("ext4", "xfs")
STATES = 16  # bytes of weight, gradient and AdamW's states for each parameter in float32
ELSEWHERE = "name a folder on a local disk with ext4 or xfs: --nvme PATH here, the option nvme or ZINF_NVME for runs"


def disk(found: Disk, free_memory: int) -> Iterator[Row]:
    if found.refused:
        said, _, remedy = found.refused.rpartition(": ")
        yield Row("folder", "problem", said, remedy)
        return
    if found.file_system in KNOWN:
        yield Row("file system", "ok", found.file_system)
    else:
        named = found.file_system or "of a kind that the kernel does not tell"
        yield Row("file system", "note", f"{named}: zinf is not tested on it", ELSEWHERE)
    yield _space(found, free_memory)
    if found.reserves:
        said = f"space cannot be taken ahead ({found.reserves}), and nothing is stored without"
        yield Row("reserving", "problem", said, ELSEWHERE)
    else:
        yield Row("reserving", "ok", "space is taken before it is written to")
    if found.alignment is None:
        said = "refused: reads and writes go through the page cache, which is slower"
        yield Row("direct I/O", "note", said, ELSEWHERE)
    else:
        yield Row("direct I/O", "ok", f"works, in multiples of {found.alignment} B")
    if found.notices:
        yield Row("edits", "ok", "a write through a mapping is noticed, so parameters can be read as 16-bit copies")
    else:
        said = "a write through a mapping is not noticed, so under autocast parameters are read in twice the bytes"
        yield Row("edits", "note", said, ELSEWHERE)
    if not found.nameless:
        said = "files have a name for an instant; a kill in it leaves an empty one, which the next run removes"
        yield Row("names", "note", said, "zinf clean removes them, too")


def _space(found: Disk, free_memory: int) -> Row:
    room = (
        f"{size(found.free)} free: weights, gradients and AdamW's states of {_count(found.free // STATES)} parameters"
    )
    if found.free < mmap.PAGESIZE:
        return Row("space", "problem", "the disk is full", "free space there, or name a folder on another disk")
    if found.free < free_memory:
        return Row("space", "note", f"{room}; memory has more", "free space there, or name a folder on another disk")
    return Row("space", "ok", room)


def _count(n: int) -> str:
    for size_of, name in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if n >= size_of:
            return f"{n / size_of:.1f} {name}"
    return str(n)
