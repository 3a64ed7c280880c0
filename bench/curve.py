"""How long is a step at every limit, and is it as long as predicted?

    python -m bench.curve [--points 10] [--rounds 3] [--rate 0] [--model smollm2] [--tokens 512] [--nvme PATH]

From 256 MiB, or the smallest limit that some placement stays inside, to the one at which nothing has to move, in equal
ratios. At each, zinf trains in a process of its own beside torch.compile as it is, which stays alive and takes turns
with it, two steps at a time; only one model in a limit is in memory beside Inductor's. What the machine can do is
measured once (`zinf calibrate`), and each step is predicted from it and from the schedules alone before it is measured.
A machine that others use too is at times faster and at times slower: what is predicted is multiplied by what Inductor's
step takes beside zinf's over what it took when the machine was measured (`drift`). With --rate, reads and writes are
each held to so many MB/s. What must hold at each limit, of the medians:

    step, and the bytes it moves, between 0.8 and 1.25 of what was predicted
    memory held over what the process held before the model <= 1.1 * limit + 200 MiB
    and between 0.9 and 1.1 of what was predicted: the peak of the plan, and what the process holds that no plan counts
    (what compiling leaves behind), as it tells after its first steps

A limit at which no step could be made is told, and holds nothing.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.predict import NEAR, calibrate
from bench.record import disk_folder, entry, parser, record, verdict
from bench.slow_disk import held_to
from bench.step import PHASES, moved, whole
from bench.turns import Child, Ended, reason
from zcompiler.cli.demo_report import allowed_peak
from zcompiler.schedule.sizes import parse_bytes

WARM = 3  # compiling, the first update, the first late one
IN_A_ROW = 2  # what a late update leaves over is paid by the step after it
MIB = 1 << 20
NEAR_PEAK = 1.1
SMALL = {"depth": 4, "width": 256}  # of the mlp

Point = Mapping[str, Any]


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--points", type=int, default=10)
    arguments.add_argument("--limits", nargs="+", help="these instead of --points")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--rate", type=float, default=0, help="MB/s that may be read, and written; 0: no such limit")
    arguments.add_argument("--model", choices=("smollm2", "mlp"), default="smollm2")
    given = arguments.parse_args()
    folder = disk_folder(given.nvme)
    settings = {"model": given.model, "tokens": given.tokens, "threads": given.threads, **SMALL}
    wanted = [parse_bytes(limit) for limit in given.limits or ()] or limits(given.points, _ends(settings))
    points: list[Point] = []
    with ExitStack() as stack:
        machine = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "machine.toml"
        calibrate(folder, machine, given.rate)
        inductor = stack.enter_context(Child("inductor", "bench.trainer", {**settings, "side": "inductor"}))
        inductor.ask("load")
        for _ in range(WARM):
            inductor.ask("step")
        then = statistics.median(whole(inductor.ask("step")) for _ in range(2 * IN_A_ROW))
        for memory in wanted:
            options = {"memory": memory, "nvme": folder, "machine": str(machine)}
            side = {**settings, "side": "zinf", "machine": str(machine), "options": options, **held_to(given.rate)}
            try:
                point = measured(memory, side, inductor, given.rounds, then)
            except Ended as ended:
                point = {"memory": memory, "error": reason(str(ended)), "holds": False}
            points.append(point)
            record("curve", model=given.model, tokens=given.tokens, rounds=given.rounds, **point)
    answer(points)
    return report(points, f"{given.model}, {given.tokens} tokens, {given.rounds} rounds")


def limits(points: int, ends: Mapping[str, int]) -> list[int]:
    """Bytes, in whole MiB and equal ratios, both ends included: the least first."""
    least, most = -(-ends["least"] // MIB), -(-ends["most"] // MIB)
    ratio = most / least
    between = (round(least * ratio ** (i / (points - 1))) for i in range(1, points - 1))
    return [mib * MIB for mib in dict.fromkeys((least, *between, most))]


def _ends(settings: Mapping[str, Any]) -> Mapping[str, int]:
    with Child("ends", "bench.trainer", {**settings, "side": "plain"}) as child:
        child.ask("load")
        return child.ask("ends")


def measured(memory: int, side: Mapping[str, Any], inductor: Child, rounds: int, then: float) -> Point:
    """One limit: what was predicted, what was measured, and whether it holds. Ended where zinf could make no step.
    `then`: seconds that Inductor's step took when the machine was measured."""
    steps: dict[str, list[Point]] = {"zinf": [], "inductor": []}
    with Child(f"zinf at {memory / MIB:.0f} MiB", "bench.trainer", side) as zinf:
        zinf.ask("load")
        for _ in range(WARM):
            zinf.ask("step")
        predicted = zinf.ask("predict")
        children = {"zinf": zinf, "inductor": inductor}
        for number in range(rounds):
            for name in list(children)[:: 1 if number % 2 else -1]:
                steps[name] += [children[name].ask("step") for _ in range(IN_A_ROW)]
    return point_of(memory, predicted, steps, then)


def point_of(memory: int, predicted: Point, steps: Mapping[str, Sequence[Point]], then: float) -> Point:
    """The medians of the steps beside what was predicted. Seconds and bytes."""
    seconds = {name: statistics.median(map(whole, done)) for name, done in steps.items()}
    nbytes = statistics.median(sum(moved(step["phases"][name]) for name in PHASES) for step in steps["zinf"])
    held = [step["peak"] for step in steps["zinf"] if step["peak"] is not None]
    point = {
        "memory": memory,
        "seconds": seconds["zinf"],
        "inductor": seconds["inductor"],
        "predicted": sum(predicted["seconds"].values()) * seconds["inductor"] / then,
        "drift": seconds["inductor"] / then,
        "moved": nbytes,
        "predicted_moved": sum(predicted["moved"].values()),
        "peak": max(held, default=None),
        "planned": predicted["peak"],
        "predicted_peak": predicted["peak"] + (predicted["others"] or 0),
    }
    near = 1 / NEAR <= point["seconds"] / point["predicted"] <= NEAR
    inside = point["peak"] is None or point["peak"] <= allowed_peak(memory)
    return {**point, "holds": near and _moves_as_predicted(point) and inside and _holds_as_predicted(point)}


def _moves_as_predicted(point: Point) -> bool:
    """Also where nothing should move."""
    moved, predicted = point["moved"], point["predicted_moved"]
    return moved <= NEAR * predicted and predicted <= NEAR * moved


def _holds_as_predicted(point: Point) -> bool:
    return point["peak"] is None or 1 / NEAR_PEAK <= point["peak"] / point["predicted_peak"] <= NEAR_PEAK


def answer(points: Sequence[Point]) -> None:
    """Record what all limits together show."""
    done = [point for point in points if "error" not in point]
    count = f"{len(points)} limits"
    verdict("curve", f"limits without a step, over {count} tried", 1 - len(done) / len(points), at_most=0)
    if not done:
        return
    times = [point["seconds"] / point["predicted"] for point in done]
    moved = [p["moved"] / p["predicted_moved"] for p in done if p["moved"] and p["predicted_moved"]]
    held = [point["peak"] / allowed_peak(point["memory"]) for point in done if point["peak"] is not None]
    same = all(map(_moves_as_predicted, done))
    near, over = {"at_least": 1 / NEAR, "at_most": NEAR}, f"over what was predicted, the furthest of {count}"
    verdict("curve", f"step, {over}", _furthest(times), **near)
    verdict("curve", f"bytes moved, {over}", _furthest(moved), **near, also=same)
    if held:
        verdict("curve", f"memory held, over what may be, the most of {count}", max(held), at_most=1)
        peaks = [point["peak"] / point["predicted_peak"] for point in done if point["peak"] is not None]
        verdict("curve", f"memory held, {over}", _furthest(peaks), at_least=1 / NEAR_PEAK, at_most=NEAR_PEAK)
    for point in (done[0], done[-1]) if len(done) > 1 else done:
        question = f"step with memory={point['memory'] / MIB:.0f}MiB, over one of torch.compile in memory"
        verdict("curve", question, point["seconds"] / point["inductor"])


def _furthest(ratios: Sequence[float]) -> float:
    return max(ratios, key=lambda ratio: abs(math.log(ratio)), default=1.0)


def report(points: Sequence[Point], title: str) -> bool:
    """Print a row for each limit, and whether all hold."""
    table = Table(title=title)
    for heading in ("memory", "step", "predicted", "Inductor", "moved", "held", "predicted", ""):
        table.add_column(heading, justify="right")
    for point in points:
        memory = f"{point['memory'] / MIB:.0f} MiB"
        if "error" in point:
            table.add_row(memory, *[""] * 6, "[red]no step[/red]")
            continue
        times = [f"{point[name]:.2f} s" for name in ("seconds", "predicted", "inductor")]
        held = ["-" if n is None else f"{n / MIB:.0f} MiB" for n in (point["peak"], point["predicted_peak"])]
        verdict = "[green]yes[/green]" if point["holds"] else "[red]no[/red]"
        table.add_row(memory, *times, f"{point['moved'] / 1e9:.2f} GB", *held, verdict)
    console = Console()
    console.print(table)
    for point in points:
        if "error" in point:
            console.print(f"{point['memory'] / MIB:.0f} MiB: {point['error']}", markup=False, soft_wrap=True)
    return all(point["holds"] for point in points)


if __name__ == "__main__":
    entry(main)
