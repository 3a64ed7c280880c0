"""What the demo's sides reported, as tables: losses side by side, memory, nvme bytes and times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

WARM = 2  # first steps that compile and make states: left out of memory, traffic and time
RUN_TIME_ROOM = 200 * 2**20  # what the run time may take on top of 1.1 times the limit


@dataclass(slots=True)
class Side:
    """One way to train: what its process has said. Bytes and seconds."""

    name: str
    base: int = 0  # resident before the model is built
    parameters: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak: int = 0  # resident at most, in the steps after the warm ones if `steady`, else over the whole run
    steady: bool = True
    before: dict[str, Any] | None = None  # nvme traffic after the warm steps: {"read": {kind: bytes}, "written": ...}
    after: dict[str, Any] | None = None  # and after the last
    done: bool = False

    def hear(self, line: dict[str, Any]) -> None:
        """Take in one line of the process (zcompiler.cli.demo_child says what lines there are)."""
        if "base" in line:
            self.base, self.parameters = line["base"], line["parameters"]
        elif "step" in line:
            self.losses.append(line["loss"])
            self.seconds.append(line["seconds"])
        else:
            done = line["done"]
            self.peak, self.steady = done["peak"], done["steady"]
            self.before, self.after = done["before"], done["after"]
            self.done = True

    @property
    def memory(self) -> int:
        """Bytes that the model and its training took."""
        return self.peak - self.base

    def per_step(self, way: str) -> dict[str, float] | None:
        """Bytes a step that were "read" or "written" on nvme, by kind of state, after the warm steps."""
        if self.before is None or self.after is None:
            return None
        steps = len(self.losses) - WARM
        return {kind: (n - self.before[way].get(kind, 0)) / steps for kind, n in sorted(self.after[way].items())}


def loss_gap(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest relative difference between two sides' losses; NaN if either has one."""
    gaps = [abs(x - y) / abs(x) for x, y in zip(a, b, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def allowed_peak(limit: int) -> int:
    """Bytes that a process kept to `limit` may take in all: a tenth more, and the run time itself."""
    return int(1.1 * limit) + RUN_TIME_ROOM


def report(console: Console, sides: Sequence[Side], limit: int) -> None:
    """Print the tables. The first side is what the others are compared with; `limit` is zinf's, in bytes."""
    console.print(_losses(sides))
    for side in sides[1:]:
        gap = loss_gap(sides[0].losses, side.losses)
        console.print(f"Largest relative difference in loss, {sides[0].name} and {side.name}: {gap:.1e}")
    console.print()
    console.print(_costs(sides))
    if not all(side.steady for side in sides):
        console.print("The peak includes loading and the first steps: this kernel does not let it be reset.")
    for side in sides:
        if side.name == "zinf":
            allowed = allowed_peak(limit)
            verdict = "[green]kept[/green]" if side.memory <= allowed else "[red]exceeded[/red]"
            console.print(f"Limit of {gib(limit)}, with a tenth and 200 MiB for the run time {gib(allowed)}: {verdict}")


def _losses(sides: Sequence[Side]) -> Table:
    table = Table(title="Loss")
    table.add_column("step", justify="right")
    for side in sides:
        table.add_column(side.name, justify="right")
    for step, row in enumerate(zip(*(side.losses for side in sides), strict=True), 1):
        table.add_row(str(step), *(f"{loss:.6f}" for loss in row))
    return table


def _costs(sides: Sequence[Side]) -> Table:
    table = Table(title=f"Memory, traffic and time (steps from {WARM + 1} on)")
    table.add_column("")
    for side in sides:
        table.add_column(side.name, justify="right")
    table.add_row("peak memory", *(gib(side.memory) for side in sides))
    for way in ("read", "written"):
        traffic = [side.per_step(way) for side in sides]
        table.add_row(f"nvme {way} a step", *("-" if t is None else gib(sum(t.values())) for t in traffic))
        for kind in sorted({kind for t in traffic if t for kind in t}):
            table.add_row(f"  {kind}", *("-" if t is None else gib(t.get(kind, 0)) for t in traffic), style="dim")
    table.add_row("median step", *(f"{statistics.median(side.seconds[WARM:]):.2f} s" for side in sides))
    table.add_row("first step", *(f"{side.seconds[0]:.2f} s" for side in sides))
    return table


def as_json(sides: Sequence[Side], settings: dict[str, Any]) -> dict[str, Any]:
    """All that was measured, as JSON has it."""
    return {"settings": settings, "sides": [asdict(side) for side in sides]}


def gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
