"""How much of a slow disk does reading ahead hide? zinf with prefetch="auto" against prefetch=0.

    python -m bench.prefetch [--pairs 9] [--rate 300] [--throttle exact] [--model smollm2] [--nvme /path/on/a/disk]

Parameters rest on nvme and are read once for the forward and once for the backward pass; those two passes are timed,
without an optimizer step. Reads are held to `rate` MB/s, which makes reading about as long as computing on a small
machine. The two processes stay alive and take turns. What must hold of the median over the pairs: reading ahead saves
at least 15 % of the time.

--throttle says how. exact: a request takes as long as on a disk of that rate (bench.slow_disk). cgroup: by the kernel
(blkio, as root), which keeps the rate on average over slices of 0.1 s: after a pause that much goes at the disk's own
speed, 30 MB at 300 MB/s. Reads that computing waits for have such pauses before them, so it favours prefetch=0, and
with layers smaller than a slice, as SmolLM2's of 14 MB, prefetch=0 hardly meets the limit. --model mlp has layers of
64 MiB, with which either throttle works. The column "MB/s" says which rate either side really saw.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cgroup import disk_group
from bench.record import disk_folder, entry, parser, record, verdict
from bench.turns import Child

LEAST = 0.15
LARGE = {"width": 4096, "depth": 8}  # of the mlp: 134 M parameters, 512 MiB
WARM = 1  # a pass that compiles


def seconds(answer: Mapping[str, Any]) -> float:
    """Of the forward and the backward pass together."""
    return sum(phase["seconds"] for phase in answer["phases"].values())


def summed(answer: Mapping[str, Any], kind: str) -> float:
    """Seconds "hidden" or "exposed", or bytes "read", over both passes."""
    return sum(sum(phase[kind].values()) for phase in answer["phases"].values())


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--pairs", type=int, default=9)
    arguments.add_argument("--model", choices=("smollm2", "mlp"), default="smollm2")
    arguments.add_argument("--throttle", choices=("exact", "cgroup"), default="exact")
    arguments.add_argument("--rate", type=float, default=300, help="MB/s that may be read")
    given = arguments.parse_args()
    folder = disk_folder(given.nvme)
    place = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
    sides: dict[str, str | int] = {"auto": "auto", "none": 0}
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    exact = given.throttle == "exact"
    with ExitStack() as stack:
        group = None if exact else stack.enter_context(disk_group("prefetch"))
        children = {}
        for name, prefetch in sides.items():
            settings = {
                "side": "zinf",
                "model": given.model,
                **LARGE,
                "tokens": given.tokens,
                "threads": given.threads,
                "read_rate": given.rate * 1e6 if exact else None,
                "options": {"memory": given.memory, "nvme": folder, "place": place, "prefetch": prefetch},
            }
            child = Child(f"prefetch {name}", "bench.trainer", settings, group=group and group.path)
            children[name] = stack.enter_context(child)
            child.ask("load")
            for _ in range(WARM):
                child.ask("passes")
        if group is not None:
            group.throttle(Path(folder), "read", rate=int(given.rate * 1e6))
        for pair in range(given.pairs):
            for name in list(children)[:: 1 if pair % 2 else -1]:
                answer = children[name].ask("passes")
                answers[name].append(answer)
                record(
                    "prefetch",
                    model=given.model,
                    side=name,
                    pair=pair,
                    rate=given.rate,
                    throttle=given.throttle,
                    **answer,
                )

    what = f"{given.model}, {given.tokens} tokens, memory={given.memory}"
    table = Table(title=f"{what}, reads at {given.rate:g} MB/s, {given.throttle}")
    for heading in ("prefetch", "forward", "backward", "both", "read", "MB/s", "exposed", "hidden"):
        table.add_column(heading, justify="right")
    for name, done in answers.items():
        times = [statistics.median(a["phases"][p]["seconds"] for a in done) for p in ("forward", "backward")]
        times.append(statistics.median(map(seconds, done)))
        read = statistics.median(summed(a, "read") for a in done)
        waits = [statistics.median(summed(a, kind) for a in done) for kind in ("exposed", "hidden")]
        cells = [*(f"{t:.2f} s" for t in times), f"{read / 1e9:.2f} GB", f"{read / sum(waits) / 1e6:.0f}"]
        table.add_row(name, *cells, *(f"{t:.2f} s" for t in waits))
    saving = statistics.median(
        1 - seconds(auto) / seconds(none) for auto, none in zip(answers["auto"], answers["none"], strict=True)
    )
    question = f"forward and backward, over those with prefetch=0, reads at {given.rate:g} MB/s"
    holds = verdict("prefetch", question, 1 - saving, at_most=1 - LEAST)
    console = Console()
    console.print(table)
    mark = "[green]yes[/green]" if holds else "[red]no [/red]"
    console.print(f"{mark} reading ahead saves {saving:.1%} (median of {given.pairs} pairs, wanted {LEAST:.0%})")
    said = {"model": given.model, "rate": given.rate, "throttle": given.throttle, "pairs": given.pairs}
    record("prefetch", summary="saving", **said, saving=saving, holds=holds)
    return holds


if __name__ == "__main__":
    entry(main)
