"""How long is the first step, compiling included? zinf against torch.compile as it is.

    python -m bench.first_step [--pairs 2] [--memory 1.25GiB] [--tokens 512] [--nvme /path/on/a/disk]

Each first step is the first thing a new process does after loading the model, with compiler caches that are empty
(a directory of its own). One after the other, the order alternating from pair to pair; it takes minutes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record, verdict
from bench.turns import Child

SIDES = ("inductor", "zinf")


def first_step(side: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The first step's answer from a process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="zinf-bench-") as cache:
        environ = {"TORCHINDUCTOR_CACHE_DIR": cache}
        with Child(side, "bench.trainer", {**settings, "side": side}, environ=environ) as child:
            child.ask("load")
            return child.ask("step")


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--pairs", type=int, default=2)
    given = arguments.parse_args()
    settings = {
        "model": "smollm2",
        "tokens": given.tokens,
        "threads": given.threads,
        "options": {"memory": given.memory, "nvme": disk_folder(given.nvme)},
    }
    times: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for pair in range(given.pairs):
        for side in SIDES[:: 1 if pair % 2 else -1]:
            answer = first_step(side, settings)
            record("first_step", side=side, pair=pair, **answer)
            times[side].append([phase["seconds"] for phase in answer["phases"].values()])

    table = Table(title=f"First step, SmolLM2-135M, {given.tokens} tokens, empty caches")
    for heading in ("", "forward", "backward", "optimizer", "step", "lowest to highest"):
        table.add_column(heading, justify="right")
    for side, done in times.items():
        whole = [sum(phases) for phases in done]
        row = [*map(statistics.median, zip(*done, strict=True)), statistics.median(whole)]
        table.add_row(side, *(f"{t:.1f} s" for t in row), f"{min(whole):.1f} to {max(whole):.1f} s")
    ratio = statistics.median(sum(z) / sum(i) for i, z in zip(times["inductor"], times["zinf"], strict=True))
    console = Console()
    console.print(table)
    console.print(f"zinf's first step takes {ratio:.2f} of torch.compile's (median of {given.pairs} pairs)")
    return verdict("first_step", "first step, compiling included, over that of torch.compile", ratio)


if __name__ == "__main__":
    entry(main)
