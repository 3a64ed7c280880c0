"""What is it worth that an update goes on beside the next forward? zinf with late=True against late=False.

    python -m bench.late [--pairs 9] [--rate 500] [--nvme /path/on/a/disk]

Parameters and optimizer states rest on nvme; whole training steps are timed, from the forward to the return of
`optimizer.zero_grad()`. Reads and writes are each held to `rate` MB/s, exactly (bench.slow_disk), or not with --rate 0.
The two processes stay alive and take turns, several steps at a time, because what a late update leaves over is paid by
the next step. What must hold of the median over the pairs: a step is at least 12 % shorter.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record, verdict
from bench.turns import Child

LEAST = 0.12
WARM = 3  # steps: compiling, the first update, the first late one
STEPS = 3  # in a turn


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--pairs", type=int, default=9)
    arguments.add_argument("--rate", type=float, default=500, help="MB/s that may be read, and written")
    given = arguments.parse_args()
    rate = given.rate * 1e6 or None
    place = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
    sides = {"late": True, "at once": False}
    times: dict[str, list[float]] = {name: [] for name in sides}
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    with ExitStack() as stack:
        children = {}
        for name, late in sides.items():
            options = {"memory": given.memory, "nvme": disk_folder(given.nvme), "place": place, "late": late}
            settings = {
                "side": "zinf",
                "model": "smollm2",
                "tokens": given.tokens,
                "threads": given.threads,
                "options": options,
                "read_rate": rate,
                "write_rate": rate,
            }
            children[name] = stack.enter_context(Child(name, "bench.trainer", settings))
            children[name].ask("load")
            for _ in range(WARM):
                children[name].ask("step")
        for pair in range(given.pairs):
            for name in list(children)[:: 1 if pair % 2 else -1]:
                turn = [children[name].ask("step") for _ in range(STEPS)]
                answers[name] += turn
                times[name].append(statistics.mean(_seconds(answer) for answer in turn))
                record("late", side=name, pair=pair, rate=given.rate, seconds=times[name][-1], steps=turn)

    table = Table(title=f"SmolLM2-135M, {given.tokens} tokens, memory={given.memory}, {given.rate:g} MB/s each way")
    for heading in ("update", "forward", "backward", "optimizer", "step"):
        table.add_column(heading, justify="right")
    for name, done in answers.items():
        phases = [statistics.median(a["phases"][p]["seconds"] for a in done) for p in done[0]["phases"]]
        table.add_row(name, *(f"{t:.2f} s" for t in (*phases, statistics.median(times[name]))))
    saving = statistics.median(1 - a / b for a, b in zip(times["late"], times["at once"], strict=True))
    disk = f", disk of {given.rate:g} MB/s" if rate else ""
    holds = verdict("late", f"step, over one with late=False{disk}", 1 - saving, at_most=1 - LEAST)
    console = Console()
    console.print(table)
    said = "[green]yes[/green]" if holds else "[red]no [/red]"
    console.print(f"{said} a late update saves {saving:.1%} (median of {given.pairs} pairs, wanted {LEAST:.0%})")
    record("late", summary="saving", rate=given.rate, pairs=given.pairs, saving=saving, holds=holds)
    return holds


def _seconds(answer: dict[str, Any]) -> float:
    return sum(phase["seconds"] for phase in answer["phases"].values())


if __name__ == "__main__":
    entry(main)
