"""How long does `import zcompiler` take beside `import torch`?

    python -m bench.import_time [--rounds 9]

Each import is the first thing that a new process does; only the import is timed. The statements take turns, each round
begins with another one, and the medians are compared. Bytecode is in a directory of its own, written in a round that
does not count, so all read theirs from a cache, whatever the environment says. What must hold, of `import zcompiler`
alone and of both in one process:

    import zcompiler <= 1.2 * import torch

The backend itself is loaded at the first compile; what that takes is told, beside what torch loads then for a backend
of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.record import entry, record, verdict
from bench.turns import ROOT

LIMIT = 1.2
BASE = "import torch"
HELD = ("import zcompiler", "import torch, zcompiler")
TOLD = ("import torch._dynamo.backends.debugging", "import torch, zcompiler.backend")
STATEMENTS = (BASE, *HELD, *TOLD)


def seconds(statement: str, bytecode: str) -> float:
    """What the statement takes in a new process that keeps its bytecode in a directory."""
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPYCACHEPREFIX": bytecode}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(run.stdout)


def rounds_of(rounds: int) -> dict[str, list[float]]:
    """The seconds of each statement, round by round."""
    done: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    with tempfile.TemporaryDirectory(prefix="zinf-bench-") as bytecode:
        for statement in STATEMENTS:
            seconds(statement, bytecode)
        for number in range(rounds):
            first = number % len(STATEMENTS)
            for statement in (*STATEMENTS[first:], *STATEMENTS[:first]):
                taken = seconds(statement, bytecode)
                record("import_time", statement=statement, round=number, seconds=taken)
                done[statement].append(taken)
    return done


def report(done: Mapping[str, Sequence[float]]) -> bool:
    """Print the table and whether what must hold does."""
    medians = {statement: statistics.median(taken) for statement, taken in done.items()}
    ratios = {statement: taken / medians[BASE] for statement, taken in medians.items()}
    table = Table(title="Imports in new processes")
    for heading, side in (
        ("", "left"),
        ("median", "right"),
        ("of import torch", "right"),
        ("lowest to highest", "right"),
    ):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for statement, taken in done.items():
        row = (f"{medians[statement]:.2f} s", f"{ratios[statement]:.2f}", f"{min(taken):.2f} to {max(taken):.2f} s")
        table.add_row(statement, *row)
    questions = {statement: f"`{statement}`, over `{BASE}`" for statement in (*HELD, *TOLD)}
    holds = all([verdict("import_time", questions[one], ratios[one], at_most=LIMIT) for one in HELD])
    for one in TOLD:
        verdict("import_time", questions[one], ratios[one])
    worst = max(ratios[statement] for statement in HELD)
    console = Console()
    console.print(table)
    said = "[green]yes[/green]" if holds else "[red]no [/red]"
    console.print(f"{said} zcompiler takes {worst:.2f} of torch's import; at most {LIMIT} may be")
    record("import_time", summary="ratios", rounds=len(done[BASE]), ratios=ratios, holds=holds)
    return holds


def main() -> bool:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=9)
    return report(rounds_of(arguments.parse_args().rounds))


if __name__ == "__main__":
    entry(main)
