"""From figures to a machine: what was measured here, and described figures where nothing could be."""

from __future__ import annotations

from collections.abc import Mapping

from zcompiler.machine.choose import OTHERWISE, shipped_machine
from zcompiler.machine.machine import Lane, Machine, MatmulRates, Memory

DIGITS = 3  # more than what repeats


def machine_of(figures: Mapping[str, float], tiers: tuple[Memory, ...]) -> Machine:
    """A machine named "calibrated" with the figures that are there, by their keys in a machine file; the others are
    those of the shipped laptop. At least one figure of each dtype of matmul that is to be known must be there."""
    base = shipped_machine(OTHERWISE)
    lanes = tuple(
        Lane(
            lane.name,
            _rounded(figures.get(f"lanes.{lane.name}.bandwidth", lane.bandwidth)),
            _rounded(figures.get(f"lanes.{lane.name}.latency", lane.latency)),
            _rounded(figures[key]) if (key := f"lanes.{lane.name}.interference") in figures else lane.interference,
        )
        for lane in base.lanes
    )
    matmuls: dict[str, dict[int, float]] = {}
    for key, rate in figures.items():
        if key.startswith("matmul."):
            _, dtype, side = key.split(".")
            matmuls.setdefault(dtype, {})[int(side)] = rate
    others = {
        key: _rounded(figures.get(f"{table}.{key}", getattr(base, key)))
        for table, keys in {
            "memory": ("elementwise", "reduction", "copy", "fresh"),
            "calls": ("kernel", "region"),
            "update": ("fused", "unfused"),
        }.items()
        for key in keys
    }
    return Machine(
        name="calibrated",
        tiers=tiers,
        lanes=lanes,
        matmuls=tuple(MatmulRates(dtype, _consistent(rates)) for dtype, rates in matmuls.items()),
        attention=tuple(
            (key.removeprefix("attention."), _rounded(rate))
            for key, rate in figures.items()
            if key.startswith("attention.")
        ),
        measured=tuple(dict.fromkeys(_table(key) for key in figures)),
        **others,
    )


def _consistent(rates: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """The rates, raised where a smaller matmul seemed to take longer than a larger one: something was in its way."""
    points = []
    longest = float("inf")
    for side in sorted(rates, reverse=True):
        took = min(side**3 / rates[side], longest)
        points.append((side, _rounded(side**3 / took)))
        longest = 0.98 * took  # less, so that rounding cannot turn them round again
    return tuple(reversed(points))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _table(key: str) -> str:
    parts = key.split(".")
    return ".".join(parts[:2]) if parts[0] in ("lanes", "matmul", "attention") else parts[0]
