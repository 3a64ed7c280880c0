"""The `zinf` command itself, without commands, and what several of them take."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="zinf",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help='Train models whose states do not fit in memory: [bold]torch.compile(model, backend="zinf")[/bold].\n\n'
    "Begin with [bold]zinf doctor[/bold], then [bold]zinf demo[/bold].",
)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def _print_version(wanted: bool) -> None:
    if wanted:
        python = ".".join(map(str, sys.version_info[:3]))
        typer.echo(f"zinf {_version_of('zinf')}, torch {_version_of('torch')}, Python {python}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, metavar="", help="Print the versions and exit."
        ),
    ] = False,
) -> None:
    pass


def flag(name: str, says: str) -> Any:
    return typer.Option(name, help=says, metavar="")


# Commands are shown in groups, in this order.
SEE, MACHINE, SCHEDULES = "See", "Machine", "Schedules"

Json = Annotated[bool, flag("--json", "Print all of it as JSON.")]
Folders = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="Folder for states; again for several. Default: ZINF_NVME, else ~/.cache/zinf."),
]
