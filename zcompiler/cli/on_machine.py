"""`zinf doctor`, `zinf calibrate` and `zinf clean`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zcompiler.cli.base import MACHINE, Folders, Json, app, flag


@app.command(rich_help_panel=MACHINE)
def doctor(nvme: Folders = None, json_wanted: Json = False) -> None:
    """Say what is wrong with this machine, and the remedy.

    Looks at all that zinf wants of a machine: versions, compiler, memory, limits, and the disk, which is tried.

    Ends with status 1 if zinf does not work here, else 0.
    """
    from zcompiler.cli.doctor.command import doctor as run

    if not run(nvme=nvme or (), json_wanted=json_wanted, console=Console(), errors=Console(stderr=True)):
        raise typer.Exit(1)


@app.command(rich_help_panel=MACHINE)
def calibrate(
    nvme: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder on the disk to measure. Default: ZINF_NVME, else ~/.cache/zinf."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write. Default: ~/.config/zinf/machine.toml, which runs then use."),
    ] = None,
    json_wanted: Json = False,
) -> None:
    """Measure how fast this machine is.

    Measures disk, memory and compute in less than a minute, for the option machine. Let the machine be quiet meanwhile.
    """
    from zcompiler.cli.calibrate.command import calibrate as run
    from zcompiler.cli.calibrate.samples import Effort

    errors = Console(stderr=True)
    run(nvme=nvme, output=output, as_json=json_wanted, console=Console(), errors=errors, effort=Effort())


@app.command(rich_help_panel=MACHINE)
def clean(
    nvme: Folders = None,
    dry_run: Annotated[bool, flag("--dry-run", "Remove nothing, only say what there is.")] = False,
    json_wanted: Json = False,
) -> None:
    """Remove what killed runs may have left.

    Mostly there is nothing: the files of a run have no names and vanish with it. What a running process uses stays.
    """
    from zcompiler.cli.clean import clean as run

    run(nvme=nvme or (), dry_run=dry_run, json_wanted=json_wanted, console=Console())
