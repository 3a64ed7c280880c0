"""What does a step cost beside one in memory, with its update at once and late, and what does an update cost alone?

    python -m bench.step [--rounds 7] [--rate 0] [--memory 1.25GiB] [--grads host] [--tokens 512] [--nvme PATH]

Four processes stay alive and take turns in every round, because a machine's and a disk's speed drift: torch.compile as
it is, with everything in memory; zinf with late=False, and as it is, both with parameters and optimizer states on nvme;
and plain direct I/O that reads and writes at once on the same disk, or instead of this, with --rate, reads and writes
that are each held to so many MB/s (bench.slow_disk). What must hold of the medians, where U are the
bytes that an optimizer step reads and writes:

    step of zinf, late=False <= step in memory + 1.3 * U / bandwidth
    step of zinf             <= step in memory + 0.6 * U / bandwidth
    its optimizer step alone <= 1.15 * max(U / bandwidth, optimizer step in memory)
    bytes read, and written  <= 1.05 * those of the states that move
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record, verdict
from bench.slow_disk import held_to
from bench.turns import Child

AT_ONCE, LATE, ALONE, SURPLUS = 1.3, 0.6, 1.15, 1.05
WARM = 3  # steps that compile, make optimizer states and fill caches; the third is the first late one
IN_A_ROW = 2  # steps in a turn: what a late update leaves over is paid by the step after it
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


def mean(steps: Sequence[Answer]) -> Answer:
    """Several steps as one."""
    phases = {}
    for name in PHASES:
        of_name = [step["phases"][name] for step in steps]
        phases[name] = {"seconds": statistics.mean(p["seconds"] for p in of_name)}
        for kind in ("read", "written", "hidden", "exposed"):
            if kind in of_name[0]:
                phases[name][kind] = {k: statistics.mean(p[kind][k] for p in of_name) for k in of_name[0][kind]}
    return {"phases": phases}


def rounds_of(children: Mapping[str, Child], rounds: int, known: Round) -> list[Round]:
    """What each child answered in each round, and what is `known` of others; every other round goes the other way, so
    that none is always first."""
    done: list[Round] = []
    for number in range(rounds):
        answers: dict[str, Answer] = dict(known)
        for name in list(children)[:: 1 if number % 2 else -1]:
            ask = children[name].ask
            answers[name] = ask("mixed") if name == "disk" else mean([ask("step") for _ in range(IN_A_ROW)])
            record("step", side=name, round=number, **answers[name])
        done.append(answers)
    return done


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--grads", choices=("host", "nvme"), default="host", help="where gradients rest")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--rate", type=float, default=0, help="MB/s that may be read, and written; 0: no such limit")
    arguments.add_argument("--mib", type=int, default=512, help="read, and written, for one look at the bandwidth")
    given = arguments.parse_args()
    folder = disk_folder(given.nvme)
    place = {"params": "nvme", "grads": given.grads, "optimizer": "nvme"}
    options = {"memory": given.memory, "nvme": folder, "place": place}
    settings = {"model": "smollm2", "tokens": given.tokens, "threads": given.threads, **held_to(given.rate)}
    sides = {
        "inductor": {"side": "inductor"},
        "at once": {"side": "zinf", "options": {**options, "late": False}},
        "late": {"side": "zinf", "options": options},
    }
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for name, side in sides.items():
            child = children[name] = stack.enter_context(Child(name, "bench.trainer", {**settings, **side}))
            parameters = child.ask("load")["parameters"]
            for _ in range(WARM):
                child.ask("step")
        known = {"disk": {"bytes": 2 * given.rate * 1e6, "seconds": 1.0}} if given.rate else {}
        if not known:
            disk = {"path": folder, "mib": given.mib, "threads": 2}
            children["disk"] = stack.enter_context(Child("disk", "bench.disk", disk))
        done = rounds_of(children, given.rounds, known)
    title = f"SmolLM2-135M, {given.tokens} tokens, memory={given.memory}, grads={given.grads}, {given.rounds} rounds"
    kinds = 3  # weights and AdamW's two states, in fp32
    return report(done, title, (kinds + (given.grads == "nvme")) * 4 * parameters, kinds * 4 * parameters)


def report(done: Sequence[Round], title: str, to_read: int, to_write: int) -> bool:
    """Print the medians and whether they hold. `to_read`, `to_write`: bytes of what an optimizer step moves."""

    def median(of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, done))

    sides = ("inductor", "at once", "late")
    table = Table(title=title)
    for heading in ("", "in memory", "zinf, at once", "zinf, late", "moves, late", "exposed", "hidden"):
        table.add_column(heading, justify="right")
    for name in PHASES:
        phases = {side: [r[side]["phases"][name] for r in done] for side in sides}
        times = (statistics.median(p["seconds"] for p in phases[side]) for side in sides)
        nbytes = statistics.median(map(moved, phases["late"]))
        waits = (statistics.median(sum(p[kind].values()) for p in phases["late"]) for kind in ("exposed", "hidden"))
        table.add_row(name, *map(_s, times), f"{nbytes / 1e9:.2f} GB", *map(_s, waits))
    memory, at_once, late = (median(lambda r, side=side: whole(r[side])) for side in sides)  # type: ignore[misc]
    table.add_row("step", _s(memory), _s(at_once), _s(late), "", "", "")
    bandwidth = median(lambda r: rate(r["disk"]))
    update = median(lambda r: moved(r["at once"]["phases"]["optimizer"]))
    read, written = (
        median(lambda r, kind=kind: sum(r["at once"]["phases"]["optimizer"][kind].values()))  # type: ignore[misc]
        for kind in ("read", "written")
    )
    alone, in_memory = (median(lambda r, s=s: r[s]["phases"]["optimizer"]["seconds"]) for s in ("at once", "inductor"))  # type: ignore[misc]
    fastest, in_its_time = max(update / bandwidth, in_memory), "the time of disk or memory for it"
    checks = {
        "step, update at once": (at_once, memory + AT_ONCE * update / bandwidth, _s, memory, "a step in memory"),
        "step, update late": (late, memory + LATE * update / bandwidth, _s, memory, "a step in memory"),
        "optimizer step alone": (alone, ALONE * fastest, _s, fastest, in_its_time),
        "bytes read by it": (read, SURPLUS * to_read, _gb, to_read, "the bytes of the states"),
        "bytes written by it": (written, SURPLUS * to_write, _gb, to_write, "the bytes of the states"),
    }
    console = Console()
    console.print(table)
    console.print(f"bandwidth, reading and writing at once: {bandwidth / 1e9:.2f} GB/s; an update moves {_gb(update)}")
    holds = {}
    for name, (is_, may_be, text, base, of) in checks.items():
        holds[name] = verdict("step", f"{name}, over {of}", is_ / base, at_most=may_be / base)
        said = "[green]yes[/green]" if holds[name] else "[red]no [/red]"
        console.print(f"{said} {name}: {text(is_)} of {text(may_be)} allowed ({is_ / may_be:.2f})")
    checked = {name: [is_, may_be] for name, (is_, may_be, *_) in checks.items()}
    record("step", summary=title, checks=checked, holds=holds)
    return all(holds.values())


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.2f} GB"


if __name__ == "__main__":
    entry(main)
