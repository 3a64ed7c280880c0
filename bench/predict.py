"""Is a step as long as predicted?

    python -m bench.predict [--rounds 5] [--rate 0] [--memory 1.25GiB] [--grads host] [--tokens 512] [--nvme PATH]

SmolLM2-135M trains in two processes, with its updates at once and late. When both are warm, `zinf calibrate` measures
the machine; from what it finds and from the schedules alone each process predicts its next step. Then they take turns.
With --rate, reads and writes are each held to so many MB/s. What must hold of the medians: a step takes between 0.8 and
1.25 of what was predicted, and so do the bytes it moves.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record, verdict
from bench.slow_disk import held_to, slowed
from bench.step import PHASES, WARM, mean, moved, whole
from bench.turns import ROOT, Child
from zcompiler.machine.file import read_machine, write_machine

NEAR = 1.25
IN_A_ROW = 2
LANES = ("nvme_read", "nvme_write")

Answer = Mapping[str, Any]


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--grads", choices=("host", "nvme"), default="host", help="where gradients rest")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--rate", type=float, default=0, help="MB/s that may be read, and written; 0: no such limit")
    given = arguments.parse_args()
    folder = disk_folder(given.nvme)
    place = {"params": "nvme", "grads": given.grads, "optimizer": "nvme"}
    done: dict[str, list[Answer]] = {}
    with ExitStack() as stack:
        machine = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "machine.toml"
        children: dict[str, Child] = {}
        for name, is_late in (("at once", False), ("late", True)):
            settings = {
                "side": "zinf",
                "model": "smollm2",
                "tokens": given.tokens,
                "threads": given.threads,
                "machine": str(machine),
                "options": {"memory": given.memory, "nvme": folder, "place": place, "late": is_late},
                **held_to(given.rate),
            }
            children[name] = stack.enter_context(Child(name, "bench.trainer", settings))
            children[name].ask("load")
            for _ in range(WARM):
                children[name].ask("step")
        load = os.getloadavg()
        calibrate(folder, machine, given.rate)
        print(machine.read_text())
        predicted = {name: child.ask("predict") for name, child in children.items()}
        for number in range(given.rounds):
            for name in list(children)[:: 1 if number % 2 else -1]:
                step = mean([children[name].ask("step") for _ in range(IN_A_ROW)])
                done.setdefault(name, []).append(step)
                record("predict", side=name, round=number, **step)
    title = f"SmolLM2-135M, {given.tokens} tokens, memory={given.memory}, grads={given.grads}, {given.rounds} rounds"
    title += f", load {load[0]:.1f} before and {os.getloadavg()[0]:.1f} after"
    return report(predicted, done, title)


def calibrate(folder: str, file: Path, rate: float = 0) -> None:
    """Measure the machine into `file`, and write there what becomes of it with a disk held to `rate` MB/s."""
    command = [sys.executable, "-m", "zcompiler.cli.app", "calibrate", "--nvme", folder, "--output", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    if rate:
        write_machine(slowed(read_machine(file), rate * 1e6), file)


def report(predicted: Mapping[str, Answer], done: Mapping[str, Sequence[Answer]], title: str) -> bool:
    """Print predictions beside medians, and whether they hold."""
    table = Table(title=title)
    for heading in ("", "predicted", "measured", "measured / predicted"):
        table.add_column(heading, justify="left" if not heading else "right")
    holds: dict[str, bool] = {}
    for side, answers in done.items():
        expected = predicted[side]
        rows: list[tuple[str, float, float, str]] = []
        for name in PHASES:
            rows.append((name, expected["seconds"][name], _median(a["phases"][name]["seconds"] for a in answers), "s"))
        for lane in LANES:
            seen = _median(sum(a["phases"][n]["exposed"].get(lane, 0.0) for n in PHASES) for a in answers)
            rows.append((f"exposed {lane}", expected["exposed"].get(lane, 0.0), seen, "s"))
        step, nbytes = sum(expected["seconds"].values()), sum(expected["moved"].values())
        rows.append(("step", step, _median(whole(a) for a in answers), "s"))
        rows.append(
            ("moved", nbytes / 1e9, _median(sum(moved(a["phases"][n]) for n in PHASES) for a in answers) / 1e9, "GB")
        )
        for name, wanted, seen, unit in rows:
            ratio = f"{seen / wanted:.2f}" if wanted else "-"
            table.add_row(f"{side}: {name}", f"{wanted:.2f} {unit}", f"{seen:.2f} {unit}", ratio)
            if name in ("step", "moved"):
                question = f"{'bytes moved' if name == 'moved' else 'step'}, update {side}, over what was predicted"
                near = verdict("predict", question, seen / wanted, at_least=1 / NEAR, at_most=NEAR)
                holds[f"{side}: {name}"] = near
            record("predict", side=side, what=name, predicted=wanted, measured=seen, unit=unit)
        table.add_section()
    console = Console()
    console.print(table)
    for name, good in holds.items():
        console.print(
            f"{'[green]yes[/green]' if good else '[red]no [/red]'} {name} within {NEAR} of what was predicted"
        )
    record("predict", summary=title, holds=holds)
    return all(holds.values())


def _median(values: Any) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    entry(main)
