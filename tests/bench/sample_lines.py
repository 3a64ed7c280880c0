"""Lines as the benchmarks print them, few and with round figures, in folders as `make bench` keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.collect.runs import RUNS

ORIGIN = {
    "torch": "2.13.0",
    "commit": "0123456789abcdef",
    "date": "2026-01-31",
    "cpu": "A processor",
    "cores": 2,
    "memory_bytes": 24 << 30,
}
MIB = 1 << 20

Lines = list[dict[str, Any]]


def answer(question: str, measured: float, at_least: float | None, at_most: float | None, holds: bool) -> Any:
    bounds = {"at_least": at_least, "at_most": at_most, "judged": (at_least, at_most) != (None, None)}
    return {"question": question, "measured": measured, **bounds, "holds": holds}


def phases(*seconds: float) -> dict[str, Any]:
    return {n: {"seconds": s} for n, s in zip(("forward", "backward", "optimizer"), seconds, strict=True)}


def point(memory: int, seconds: float, predicted: float, peak: int | None) -> dict[str, Any]:
    moved = {"moved": 1e9, "predicted_moved": 1e9, "peak": peak, "predicted_peak": memory}
    return {"memory": memory, "seconds": seconds, "predicted": predicted, "inductor": 4.0, **moved, "holds": True}


FOUND: dict[str, Lines] = {
    "step": [
        {"side": "inductor", "round": 0, "phases": phases(1.0, 2.0, 1.0)},
        {"side": "late", "round": 0, "phases": phases(3.0, 2.5, 0.0)},
        {"side": "disk", "round": 0, "bytes": 1e9, "seconds": 1.0},
        answer("step, update late, over a step in memory", 1.375, None, 1.3, False),
        {"summary": "a title", "checks": {}, "holds": {}},
    ],
    "late": [answer("step, over one with late=False", 0.87, None, 0.88, True)],
    "curve": [
        {"memory": 400 * MIB, "error": "DoesNotFit: memory=400MiB is too small", "holds": False},
        point(500 * MIB, 8.0, 7.0, 590 * MIB),
        point(1000 * MIB, 5.0, 5.5, None),
        answer("step, over what was predicted", 1.1428, 0.8, 1.25, True),
    ],
    "limits": [
        {"memory": "512MiB", "moved": 5.5e9, "at_least": 5e9, "holds": True},
        {"memory": "2GiB", "moved": 0.0, "at_least": 0.0, "holds": True},
        answer("bytes moved, over the least", 1.1, None, 1.1, True),
    ],
    "store": [answer("rate | mixed", 0.992, None, None, True)],
}


def write(folder: Path, name: str, lines: Sequence[dict[str, Any]], ended: int = 0, **origin: Any) -> None:
    """The file of one benchmark that ended with a status."""
    where = {**ORIGIN, "spec": " ".join(RUNS[name]), **origin}
    end = {"ended": ended, "error": where.pop("error", "")}
    folder.mkdir(parents=True, exist_ok=True)
    texts = [json.dumps({"bench": name, **line, **where}) for line in (*lines, end)]
    (folder / f"{name}.jsonl").write_text("".join(f"{text}\n" for text in texts))


def write_all(folder: Path) -> None:
    for name, lines in FOUND.items():
        write(folder, name, lines)
