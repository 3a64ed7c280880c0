"""The command: load the target, describe it, and print what was asked for, or write it to a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zcompiler.cli.dump import show
from zcompiler.cli.dump.describing import described
from zcompiler.cli.dump.target import Wanted
from zcompiler.describe.described import Schedules, heading


def dump(
    wanted: Wanted,
    options: Mapping[str, Any],
    shown: show.Wanted,
    *,
    passes: str | None = None,
    autocast: str | None = None,
    output: Path | None = None,
    update: bool = True,
    echo: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """`passes` instead of the plan's; `autocast`: the dtype under which the model runs; `update`: with the schedule of
    the optimizer step. `warn` gets what zinf would warn of.

    ZinfError for what is not there or cannot be described, OptionError, DoesNotFit, OSError for the folder.
    """
    found = described(wanted, options, autocast=autocast, update=update)
    if passes is not None:
        found = replace(found, graphs=tuple(graph.through(passes) for graph in found.graphs))
    for note in found.notes:
        warn(note)
    if output is None:
        echo(_together(found, shown))
        return
    count = 0
    for path, text in show.sections(found, shown):
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).write_text(text, encoding="utf-8")
        count += 1
    found.save_plan(output / "plan.json")
    echo(f"{count + 1} files in {output}\n")


def _together(found: Schedules, shown: show.Wanted) -> str:
    """The sections below each other; what is read as a schedule stays one."""
    if shown.nothing:
        return str(found)
    parts = list(show.sections(found, shown))
    if len(parts) == 1:
        return parts[0][1]
    return "\n".join(f"{heading(path, '')}{text}" for path, text in parts)
