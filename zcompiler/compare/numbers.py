"""Metrics as one reads them: rounded, with a unit."""

from __future__ import annotations

from zcompiler.compare.metrics import NANOSECONDS, THOUSAND, Metric
from zcompiler.schedule.sizes import UNITS


def size(nbytes: int) -> str:
    """Bytes: `36.25 MiB`."""
    unit, one = next((unit for unit in UNITS if abs(nbytes) >= unit[1]), UNITS[-1])
    return f"{_short(nbytes / one)} {unit}"


def duration(seconds: float) -> str:
    """`1.250 ms`, and from ten seconds on `12.500 s`."""
    return f"{seconds:.3f} s" if abs(seconds) >= 10 else f"{seconds * 1e3:.3f} ms"


def shown(metric: Metric, number: int | None) -> str:
    """The number of a metric; `-` where it is not known."""
    if number is None:
        return "-"
    if metric.kind in ("bytes", "peak"):
        return size(number)
    if metric.kind == "measured":
        return f"{number / THOUSAND:.3f}"
    return duration(number / NANOSECONDS) if metric.kind in ("exposed", "step") else str(number)


def change(metric: Metric, before: int | None, after: int | None) -> str:
    """`+36 MiB (+1.2 %)`; empty where nothing changed or one of them is unknown."""
    if before is None or after is None or before == after:
        return ""
    sign = "+" if after > before else ""
    text = f"{sign}{shown(metric, after - before)}"
    if not before:
        return text
    part = 100 * (after - before) / before
    return f"{text} ({sign}{f'{part:.3g}' if abs(part) < 1000 else f'{part:.0f}'} %)"


def plural(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
