"""The pictures: SVG files that are the same for the same lines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.collect.runs import Line
from bench.step import PHASES, whole
from zcompiler.schedule.sizes import parse_bytes

GIB = 1 << 30
SIZE = (7.0, 3.6)  # inches, of each panel
MEASURED, PREDICTED, REFERENCE = "#1f77b4", "#d95f02", "#777777"
# No dates and no random ids in the files; text as text, so that they stay small.
SETTINGS = {"svg.hashsalt": "zinf", "svg.fonttype": "none", "font.size": 10, "axes.grid": True, "grid.alpha": 0.3}
SIDES = {"inductor": "torch.compile,\nin memory", "at once": "zinf,\nlate=False", "late": "zinf"}
TITLES = {
    "curve.svg": "How long a step takes, and what it holds, at every memory limit",
    "step.svg": "Where the time of a step goes",
    "limits.svg": "What a step moves at several memory limits",
}


def draw(lines: Mapping[str, Sequence[Line]], folder: Path) -> list[str]:
    """Draw what there are lines for; the names of the files."""
    import matplotlib

    matplotlib.use("svg")
    with matplotlib.rc_context(SETTINGS):
        figures = {
            "curve.svg": _curve([line for line in lines.get("curve", ()) if "predicted" in line]),
            "step.svg": _step([line for line in lines.get("step", ()) if "phases" in line]),
            "limits.svg": _limits([line for line in lines.get("limits", ()) if "moved" in line]),
        }
        drawn = {name: figure for name, figure in figures.items() if figure is not None}
        for name, figure in drawn.items():
            folder.mkdir(parents=True, exist_ok=True)
            figure.suptitle(TITLES[name], fontsize=11)
            figure.savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
    return list(drawn)


def _panels(count: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot, which would keep every figure

    figure = Figure(figsize=(SIZE[0], SIZE[1] * count), layout="constrained")
    return figure, figure.subplots(count, squeeze=False)[:, 0]


def _curve(points: Sequence[Line]) -> Any:
    if not points:
        return None
    figure, (times, held) = _panels(2)
    limits = [point["memory"] / GIB for point in points]
    lines = (("seconds", "measured", "o-", MEASURED), ("predicted", "predicted", "x--", PREDICTED))
    for name, label, style, colour in lines:
        times.plot(limits, [point[name] / point["inductor"] for point in points], style, color=colour, label=label)
    times.axhline(1, color=REFERENCE, label="torch.compile, all in memory")
    times.set(ylabel="step, over one in memory", ylim=(0, None))
    held.plot(limits, limits, "-", color=REFERENCE, label="the limit")
    known = [point for point in points if point["peak"] is not None]
    at, peaks = [point["memory"] / GIB for point in known], [point["peak"] / GIB for point in known]
    held.plot(at, peaks, "o-", color=MEASURED, label="measured: all that the process holds for it")
    planned = [point["predicted_peak"] / GIB for point in points]
    held.plot(limits, planned, "x--", color=PREDICTED, label="predicted: what counts against the limit")
    held.set(xlabel="memory limit, GiB", ylabel="GiB held", ylim=(0, None))
    for axes in (times, held):
        axes.set_xscale("log")
        axes.set_xticks(limits, [f"{limit:.2f}" for limit in limits])
        axes.minorticks_off()
        axes.legend()
    return figure


def _step(rounds: Sequence[Line]) -> Any:
    sides = list(dict.fromkeys(line["side"] for line in rounds))
    if "inductor" not in sides:
        return None
    figure, (axes,) = _panels(1)
    unit = statistics.median(whole(line) for line in rounds if line["side"] == "inductor")
    below = [0.0] * len(sides)
    for phase, colour in zip(PHASES, (MEASURED, PREDICTED, REFERENCE), strict=True):
        of_phase = ([line["phases"][phase]["seconds"] for line in rounds if line["side"] == side] for side in sides)
        parts = [statistics.median(seconds) / unit for seconds in of_phase]
        axes.barh([SIDES.get(side, side) for side in sides], parts, left=below, color=colour, label=phase, height=0.6)
        below = [a + b for a, b in zip(below, parts, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="over a step in memory")
    axes.legend()
    return figure


def _limits(points: Sequence[Line]) -> Any:
    if not points:
        return None
    figure, (axes,) = _panels(1)
    limits = [parse_bytes(point["memory"]) / GIB for point in points]
    axes.plot(limits, [point["moved"] / 1e9 for point in points], "o-", color=MEASURED, label="moved")
    least = [point["at_least"] / 1e9 for point in points]
    axes.plot(limits, least, "x--", color=PREDICTED, label="the least that the limit allows")
    axes.set(xlabel="memory limit, GiB", ylabel="GB a step", ylim=(0, None))
    axes.legend()
    return figure
