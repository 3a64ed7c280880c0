"""`zinf explain`: where the memory and the time of a step go, and what would help."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from zcompiler.advise.explained import Explained
from zcompiler.advise.text import WIDTH, show
from zcompiler.cli.asked import Asked
from zcompiler.compare.files import SUFFIX


def explain(target: str, asked: Asked, *, tries: bool, as_json: bool) -> None:
    """Print it. ZinfError for what is not there or cannot be described, BadInput for a file that is no schedule."""
    found = _file(Path(target), asked) if target.endswith(SUFFIX) else _planned(target, asked, tries)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
    else:
        show(found, Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False))


def _planned(target: str, asked: Asked, tries: bool) -> Explained:
    options = asked.options()  # what is wrong is said before torch is imported
    from zcompiler.advise.explain import explain as explained
    from zcompiler.cli.dump.describing import as_it_runs
    from zcompiler.cli.dump.target import load

    found = load(asked.wanted(target))
    with as_it_runs(asked.autocast):
        return explained(
            found.model,
            found.inputs,
            loss=found.loss,
            optimizer=found.optimizer,
            options=options,
            train=asked.train,
            tries=tries,
        )


def _file(path: Path, asked: Asked) -> Explained:
    from zcompiler.advise.bare import explain_schedule
    from zcompiler.compare.files import read_side, require_rules
    from zcompiler.machine.choose import shipped_machine

    side = read_side([path])
    require_rules(side, str(path))
    (schedule,) = side.schedules.values()
    return explain_schedule(schedule, shipped_machine("laptop"))
