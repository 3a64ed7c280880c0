"""Numbers as a reader wants them: three digits and a unit."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"


def seconds(value: float | None) -> str:
    return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def size(value: float | None) -> str:
    return _scaled(value, (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)))


def rate(value: float | None) -> str:
    return _scaled(value, (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0)))


def ratio(measured: float | None, planned: float | None) -> str:
    """How many times as much was measured as was planned."""
    if not planned or measured is None:
        return NOTHING
    return f"× {measured / planned:.2f}" if measured / planned < 100 else "> × 100"


def count(number: int, one: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def _scaled(value: float | None, units: Sequence[tuple[str, float]]) -> str:
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    unit, scale = next((u for u in units if value >= u[1]), units[-1])
    scaled = value / scale
    return f"{scaled:.0f} {unit}" if scaled >= 100 or unit == "B" else f"{scaled:.3g} {unit}"
