"""Does a step cost no more than its computing and its optimizer's bytes, one after the other?

    python -m bench.step [--rounds 7] [--memory 1.25GiB] [--tokens 512] [--nvme /path/on/a/disk]

Three processes stay alive and take turns in every round, because a machine's and a disk's speed drift: torch.compile as
it is, with everything in memory; zinf, with parameters and optimizer states on nvme and gradients in memory; and plain
direct I/O that reads and writes at once on the same disk. What must hold of the medians:

    step of zinf <= step in memory + 1.3 * (bytes read and written by the optimizer step) / bandwidth
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record
from bench.turns import Child

SLACK = 1.3
WARM = 2  # steps that compile, make optimizer states and fill caches
PHASES = ("forward", "backward", "optimizer")

Answer = Mapping[str, Any]
Round = Mapping[str, Answer]  # by child


def whole(step: Answer) -> float:
    """Seconds of a step."""
    return sum(phase["seconds"] for phase in step["phases"].values())


def moved(phase: Answer) -> int:
    """Bytes that zinf read and wrote in a phase."""
    return sum(phase["read"].values()) + sum(phase["written"].values())


def rate(measured: Answer) -> float:
    """Bytes a second."""
    return measured["bytes"] / measured["seconds"]


def bound(memory: Answer, zinf: Answer, disk: Answer) -> float:
    """Seconds that a step of zinf may take, from one round."""
    return whole(memory) + SLACK * moved(zinf["phases"]["optimizer"]) / rate(disk)


def rounds_of(children: Mapping[str, tuple[Child, str]], rounds: int) -> list[Round]:
    """What each child answered in each round; every other round goes the other way, so that none is always first."""
    done: list[Round] = []
    for number in range(rounds):
        order = list(children)[:: 1 if number % 2 else -1]
        answers = {name: children[name][0].ask(children[name][1]) for name in order}
        for name in children:
            record("step", side=name, round=number, **answers[name])
        done.append(answers)
    return done


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--mib", type=int, default=512, help="read, and written, for one look at the bandwidth")
    given = arguments.parse_args()
    folder = disk_folder(given.nvme)
    place = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
    settings = {
        "model": "smollm2",
        "tokens": given.tokens,
        "threads": given.threads,
        "options": {"memory": given.memory, "nvme": folder, "place": place},
    }
    with ExitStack() as stack:
        children: dict[str, tuple[Child, str]] = {}
        for side in ("inductor", "zinf"):
            child = stack.enter_context(Child(side, "bench.trainer", {**settings, "side": side}))
            child.ask("load")
            for _ in range(WARM):
                child.ask("step")
            children[side] = (child, "step")
        disk = {"path": folder, "mib": given.mib, "threads": 2}
        children["disk"] = (stack.enter_context(Child("disk", "bench.disk", disk)), "mixed")
        done = rounds_of(children, given.rounds)
    return report(done, f"SmolLM2-135M, {given.tokens} tokens, memory={given.memory}, {given.rounds} rounds")


def report(done: Sequence[Round], title: str) -> bool:
    """Print the medians and whether they hold."""

    def median(of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, done))

    table = Table(title=title)
    for heading in ("", "in memory", "zinf", "ratio", "zinf moves", "exposed", "hidden"):
        table.add_column(heading, justify="right")
    for name in PHASES:
        phases = [(r["inductor"]["phases"][name], r["zinf"]["phases"][name]) for r in done]
        times = (statistics.median(pair[i]["seconds"] for pair in phases) for i in (0, 1))
        ratio = statistics.median(ours["seconds"] / theirs["seconds"] for theirs, ours in phases)
        nbytes = statistics.median(moved(ours) for _, ours in phases)
        waits = (statistics.median(sum(ours[kind].values()) for _, ours in phases) for kind in ("exposed", "hidden"))
        table.add_row(name, *map(_s, times), f"{ratio:.2f}", f"{nbytes / 1e9:.2f} GB", *map(_s, waits))
    memory, zinf = median(lambda r: whole(r["inductor"])), median(lambda r: whole(r["zinf"]))
    ratio = median(lambda r: whole(r["zinf"]) / whole(r["inductor"]))
    table.add_row("step", _s(memory), _s(zinf), f"{ratio:.2f}", "", "", "")
    bandwidth = median(lambda r: rate(r["disk"]))
    update = median(lambda r: moved(r["zinf"]["phases"]["optimizer"]))
    allowed = memory + SLACK * update / bandwidth
    paired = median(lambda r: whole(r["zinf"]) / bound(r["inductor"], r["zinf"], r["disk"]))
    holds = zinf <= allowed
    console = Console()
    console.print(table)
    console.print(f"bandwidth, reading and writing at once: {bandwidth / 1e9:.2f} GB/s")
    console.print(f"allowed: {memory:.2f} s + {SLACK} * {update / 1e9:.2f} GB / bandwidth = {allowed:.2f} s")
    verdict = "[green]yes[/green]" if holds else "[red]no [/red]"
    console.print(f"{verdict} zinf's step takes {zinf / allowed:.2f} of that; round by round, {paired:.2f} (median)")
    medians = {"memory": memory, "zinf": zinf, "update_bytes": update, "bandwidth": bandwidth, "allowed": allowed}
    record("step", summary=title, **medians, paired=paired, holds=holds)
    return holds


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


if __name__ == "__main__":
    entry(main)
