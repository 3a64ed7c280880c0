"""What is it worth that zinf decides what becomes of activations? Its choice against all recomputed and all offloaded.

    python -m bench.activations [--tokens 2048] [--rounds 5] [--falls 0.85] [--rate 0] [--nvme /path/on/a/disk]

All model states rest in memory, so that activations alone decide how much a step holds. With room for everything they
are kept; what they take, and what a step holds then, is known from that plan. The limit for the other three is less by
`falls` of the activations' bytes: one has all of them computed again in backward, one has all offloaded to nvme, of one
zinf decides. All four stay alive and take turns. With --rate, reads and writes are each held to so many MB/s. What must
hold, of the medians:

    memory held when they are kept - when zinf decides  >= 0.6 * the activations' bytes
    step when zinf decides                              <= 1.03 * the shorter of the other two
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cgroup import Unavailable
from bench.record import disk_folder, entry, parser, record, verdict
from bench.slow_disk import held_to
from bench.step import whole
from bench.turns import Child

MIB = 1 << 20
FALLS = 0.6
NOISE = 1.03
WARM = 2
PLENTY = "64GiB"
HOST = dict.fromkeys(("params", "grads", "optimizer"), "host")
LIMITED = {"recomputed": "recompute", "offloaded": "nvme", "decided": "auto"}


def main() -> bool:
    arguments = parser(__doc__)
    arguments.set_defaults(tokens=2048)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--falls", type=float, default=0.85, help="the part of the activations' bytes to do without")
    arguments.add_argument("--rate", type=float, default=0, help="MB/s that may be read, and written; 0: no such limit")
    given = arguments.parse_args()
    settings = {"side": "zinf", "model": "smollm2", "tokens": given.tokens, "threads": given.threads}
    steps: dict[str, list[Mapping[str, Any]]] = {}
    with ExitStack() as stack:

        def started(name: str, activations: str, memory: int | str) -> Child:
            options = {"memory": memory, "nvme": disk_folder(given.nvme), "place": HOST, "activations": activations}
            child = Child(name, "bench.trainer", {**settings, "options": options, **held_to(given.rate)})
            stack.enter_context(child).ask("load")
            for _ in range(WARM):
                child.ask("step")
            return child

        children = {"kept": started("kept", "keep", PLENTY)}
        kept = children["kept"].ask("plan")
        limit = int(kept["most"] - given.falls * kept["activations"])
        children |= {name: started(name, asked, limit) for name, asked in LIMITED.items()}
        reasons = children["decided"].ask("plan")["reasons"]
        for number in range(given.rounds):
            for name in list(children)[:: 1 if number % 2 else -1]:
                step = children[name].ask("step")
                if step["peak"] is None:
                    raise Unavailable("this system does not tell the most memory that a process has held")
                steps.setdefault(name, []).append(step)
    answer = answer_of(steps, kept["activations"])
    record("activations", limit=limit, tokens=given.tokens, rate=given.rate, reasons=reasons, **answer, steps=steps)
    return report(steps, answer, limit, kept["activations"], reasons)


def answer_of(steps: Mapping[str, Sequence[Mapping[str, Any]]], activations: int) -> dict[str, float]:
    """`falls`: the part of the activations' bytes that a step holds less where zinf decides; `slower`: what it takes
    over the shorter of the other two."""
    held = {name: statistics.median(step["peak"] for step in done) for name, done in steps.items()}
    seconds = {name: statistics.median(map(whole, done)) for name, done in steps.items()}
    return {
        "falls": (held["kept"] - held["decided"]) / activations,
        "slower": seconds["decided"] / min(seconds["recomputed"], seconds["offloaded"]),
    }


def report(
    steps: Mapping[str, Sequence[Mapping[str, Any]]],
    answer: Mapping[str, float],
    limit: int,
    activations: int,
    reasons: Sequence[str],
) -> bool:
    title = f"SmolLM2-135M, activations of {activations / MIB:.0f} MiB, model states in memory"
    table = Table(title=f"{title}, limit {limit / MIB:.0f} MiB where they are not kept")
    for heading in ("activations", "step", "memory held"):
        table.add_column(heading, justify="right")
    for name, done in steps.items():
        held = statistics.median(step["peak"] for step in done)
        table.add_row(name, f"{statistics.median(map(whole, done)):.2f} s", f"{held / MIB:.0f} MiB")
    console = Console()
    console.print(table)
    for reason in reasons:
        if reason.startswith("activations"):
            console.print(reason, markup=False, highlight=False)
    less = verdict("activations", "fall of memory, over the activations' bytes", answer["falls"], at_least=FALLS)
    question = "step as zinf decides, over the shorter of all recomputed and all offloaded"
    fast = verdict("activations", question, answer["slower"], at_most=NOISE)
    return less and fast


if __name__ == "__main__":
    entry(main)
