"""The work of a run as one line of text, for a base that people read: `f32[32,1024,1024]x2 moved=1MiB kernels=3`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zcompiler.machine.work import Matmul, Work
from zcompiler.schedule.sizes import format_bytes, parse_bytes

_ATTENTION = "attention:"
_MATMUL = re.compile(rf"({_ATTENTION})?(\w+)\[(\d+),(\d+),(\d+)\](?:\*(\d+))?(?:x(\d+))?")


def format_work(work: Work) -> str:
    """Matmuls as DTYPE[m,n,k]*BATCHxCOUNT, batch and count where they are not 1, those of attention with that word in
    front; then what is not 0."""
    return " ".join(_words(work)) or "kernels=0"


def _words(work: Work) -> Iterator[str]:
    for one in work.matmuls:
        batch = f"*{one.batch}" if one.batch != 1 else ""
        count = f"x{one.count}" if one.count != 1 else ""
        kind = _ATTENTION if one.attention else ""
        yield f"{kind}{one.dtype}[{one.m},{one.n},{one.k}]{batch}{count}"
    if work.moved:
        yield f"moved={format_bytes(work.moved)}"
    if work.kernels:
        yield f"kernels={work.kernels}"
    if work.made:
        yield f"made={format_bytes(work.made)}"


def parse_work(text: str) -> Work:
    """What `format_work` wrote. ValueError for anything else."""
    matmuls: list[Matmul] = []
    found = {"moved": 0, "kernels": 0, "made": 0}
    for word in text.split():
        name, equals, value = word.partition("=")
        if match := _MATMUL.fullmatch(word):
            m, n, k = (int(match[i]) for i in (3, 4, 5))
            batch, count = (int(match[i] or 1) for i in (6, 7))
            matmuls.append(Matmul(match[2], m, n, k, batch, count, attention=bool(match[1])))
        elif equals and name in found:
            found[name] = int(value) if name == "kernels" else parse_bytes(value)
        else:
            raise ValueError(f"{word!r} is no part of a work, such as f32[32,1024,1024]x2 or moved=1MiB")
    return Work(tuple(matmuls), found["moved"], found["kernels"], found["made"])
