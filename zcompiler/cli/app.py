"""The `zinf` command."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zcompiler.errors import ZinfError
from zcompiler.options import OPTIONS, OptionError, options_table, parse_options


class Dtype(StrEnum):
    """Of a configuration's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


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


def _flag(name: str, says: str) -> Any:
    return typer.Option(name, help=says, metavar="")


# Commands are shown in groups, in this order.
SEE, MACHINE, SCHEDULES = "See", "Machine", "Schedules"

Json = Annotated[bool, _flag("--json", "Print all of it as JSON.")]
Folders = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="Folder for states; again for several. Default: ZINF_NVME, else ~/.cache/zinf."),
]


@app.command(rich_help_panel=SEE)
def demo(
    steps: Annotated[
        int, typer.Option(min=3, metavar="N", help="Training steps; memory and time are taken from the third on.")
    ] = 8,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens a step.")] = 512,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="zinf's memory limit.")] = "1.25GiB",
    nvme: Folders = None,
    inductor: Annotated[bool, _flag("--inductor", "A third side: torch.compile as it is.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all that was measured there.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, metavar="N", help="Threads for torch; 0 leaves it to torch.")] = 0,
) -> None:
    """Train SmolLM2-135M with and without zinf, and compare.

    A few steps by plain PyTorch and by zinf under a memory limit, side by side: losses, memory, times, and bytes moved.
    """
    from zcompiler.cli.demo import demo as run

    run(
        steps=steps,
        tokens=tokens,
        memory=memory,
        nvme=nvme or (),
        inductor=inductor,
        json_file=json_file,
        threads=threads,
        console=Console(),
    )


@app.command(rich_help_panel=SEE)
def options(markdown: Annotated[bool, _flag("--markdown", "As the table in docs/options.md.")] = False) -> None:
    """Show what options={...} of torch.compile may say.

    Of each option the values that it accepts, its default, and why it can be set.
    """
    if markdown:
        typer.echo(options_table(), nl=False)
        return
    grid = Table.grid(padding=(0, 2))
    for option in OPTIONS:
        grid.add_row(f"[bold]{option.name}[/bold]", "accepts", escape(option.accepts.replace("`", "")))
        grid.add_row("", "default", escape(option.default.replace("`", "")))
        grid.add_row("", "why", escape(option.why.replace("`", "")))
        grid.add_row()
    Console().print(grid)


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
    dry_run: Annotated[bool, _flag("--dry-run", "Remove nothing, only say what there is.")] = False,
    json_wanted: Json = False,
) -> None:
    """Remove what killed runs may have left.

    Mostly there is nothing: the files of a run have no names and vanish with it. What a running process uses stays.
    """
    from zcompiler.cli.clean import clean as run

    run(nvme=nvme or (), dry_run=dry_run, json_wanted=json_wanted, console=Console())


@app.command(rich_help_panel=SCHEDULES)
def dump(
    target: Annotated[
        str,
        typer.Argument(
            help="A Python file with model() and inputs(), MODULE:FUNCTION, or a configuration of transformers: a JSON "
            "file, a folder, a model type such as llama, or a class name."
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the configuration, such as num_hidden_layers=80.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences a step, for a configuration.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each sequence, for a configuration.")] = 512,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Of a configuration's weights; what it says, else float32.")
    ] = None,
    autocast: Annotated[Dtype | None, typer.Option(help="The model runs under torch.autocast.")] = None,
    train: Annotated[bool, typer.Option("--train/--infer", help="A training step, or forward alone.")] = True,
    memory: Annotated[
        str | None, typer.Option(help="The limit, such as 16GiB; else what --machine has, else what is free here.")
    ] = None,
    machine: Annotated[str | None, typer.Option(help="As the option machine: a shipped name or a .toml file.")] = None,
    place: Annotated[list[str] | None, typer.Option(help="KIND=HOME, such as params=nvme; again for others.")] = None,
    activations: Annotated[
        list[str] | None, typer.Option(help="keep, nvme, recompute or recompute+nvme; GLOB=... for some units.")
    ] = None,
    tile: Annotated[list[str] | None, typer.Option(help="GLOB=COUNT: matmuls in tiles.")] = None,
    prefetch: Annotated[str | None, typer.Option(help="Bytes that may be read ahead.")] = None,
    compute: Annotated[str | None, typer.Option(help="inductor or eager.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="A class of torch.optim.")] = None,
    master: Annotated[str | None, typer.Option(help="float32: 16-bit parameters are updated in it.")] = None,
    late: Annotated[bool, typer.Option("--late/--no-late", help="Updates beside the next forward.")] = True,
    passes: Annotated[str | None, typer.Option(help="Run these passes instead of the plan's.")] = None,
    after: Annotated[str | None, typer.Option(help="The schedule after this pass, or `all`; `bare` is before.")] = None,
    ops: Annotated[bool, typer.Option("--ops", help="The captured operators, region by region.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Where everything rests, and why.")] = False,
    times: Annotated[bool, typer.Option("--times", help="When each op runs on the machine, and a summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything but the operators as one document.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write files there, as the option dump does.")] = None,
) -> None:
    """Print the plan and the schedules for a model, from its shapes alone: nothing is allocated, compiled or run."""
    from zcompiler.cli.dump.options import zinf_options

    given = {
        "memory": memory,
        "machine": machine,
        "prefetch": prefetch,
        "compute": compute,
        "optimizer": optimizer,
        "master": master,
        "late": late,
    }
    options = zinf_options(given, place or (), activations or (), tile or ())
    parse_options(options, environ=os.environ)  # what is wrong is said before torch is imported
    from zcompiler.cli.dump.command import dump as run
    from zcompiler.cli.dump.show import Wanted as Shown
    from zcompiler.cli.dump.target import Wanted

    run(
        Wanted(target, tuple(settings or ()), batch, tokens, dtype, train),
        options,
        Shown(after, ops, plan, times, as_json),
        passes=passes,
        autocast=autocast,
        output=output,
        echo=lambda text: typer.echo(text, nl=False),
        warn=lambda text: typer.echo(f"warning: {text}", err=True),
    )


@app.command(rich_help_panel=SCHEDULES)
def opt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A schedule as text.", exists=True, dir_okay=False)],
    passes: Annotated[
        str | None, typer.Option(metavar="PASSES", help="Passes to run instead of those that the file names.")
    ] = None,
    print_after_each: Annotated[bool, _flag("--print-after-each", "Print the schedule after each pass.")] = False,
    accept: Annotated[bool, _flag("--accept", "Make the result the expected text in the file.")] = False,
) -> None:
    """Run passes on a .zsched file, verify it and print it.

    Passes are written like gather-params,prefetch-reads{distance=2} (quote them in a shell).
    """
    from zcompiler.cli.opt import opt as run

    typer.echo(run(file, passes, print_after_each, accept).rstrip("\n"))


def main() -> None:
    """Run the command. Errors that the user can act on come without traceback: status 2 for a bad option, else 1."""
    try:
        app()
    except (ZinfError, OSError) as error:
        Console(stderr=True).print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, OptionError) else 1)


if __name__ == "__main__":
    main()
