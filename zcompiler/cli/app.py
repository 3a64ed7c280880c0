"""The `zinf` command."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

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
    help='Train models whose states do not fit in memory: [bold]torch.compile(model, backend="zinf")[/bold].',
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=3, help="Training steps; memory and time are taken from the third on.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens a step.")] = 512,
    memory: Annotated[str, typer.Option(help="zinf's memory limit, such as 1.25GiB.")] = "1.25GiB",
    nvme: Annotated[
        list[str] | None, typer.Option(help="Folder on a local disk for the states; give it again to stripe.")
    ] = None,
    inductor: Annotated[bool, typer.Option("--inductor", help="A third side: torch.compile as it is.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all that was measured there.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads for torch; 0 leaves it to torch.")] = 0,
) -> None:
    """Train SmolLM2-135M a few steps with plain PyTorch and with zinf under a limit, and compare them."""
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


@app.command()
def calibrate(
    nvme: Annotated[str | None, typer.Option(help="Folder on the disk to measure; zinf's own cache folder.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; zinf/machine.toml in the user's configuration folder.")
    ] = None,
    json_wanted: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON.")] = False,
) -> None:
    """Measure this machine (disk, memory, compute), under a minute, for the option machine."""
    from zcompiler.cli.calibrate.command import calibrate as run
    from zcompiler.cli.calibrate.samples import Effort

    errors = Console(stderr=True)
    run(nvme=nvme, output=output, as_json=json_wanted, console=Console(), errors=errors, effort=Effort())


@app.command()
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
    update: Annotated[bool, typer.Option("--update/--no-update", help="With the optimizer step, or without.")] = True,
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
        update=update,
        echo=lambda text: typer.echo(text, nl=False),
        warn=lambda text: typer.echo(f"warning: {text}", err=True),
    )


@app.command()
def opt(
    file: Annotated[Path, typer.Argument(help="A schedule as text.", exists=True, dir_okay=False)],
    passes: Annotated[
        str | None, typer.Option(help="Passes to run in order, such as 'gather-params,prefetch-reads{distance=2}'.")
    ] = None,
    print_after_each: Annotated[
        bool, typer.Option("--print-after-each", help="Print the schedule after each pass, not only after the last.")
    ] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Make the result the expected text in the file.")] = False,
) -> None:
    """Read a .zsched file, run passes on it, verify it and print it."""
    from zcompiler.cli.opt import opt as run

    typer.echo(run(file, passes, print_after_each, accept).rstrip("\n"))


@app.command()
def options(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table in docs/options.md.")] = False,
) -> None:
    """Show what options={...} may say: accepted values, defaults, and why each can be set."""
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


def main() -> None:
    """Run the command. Errors that the user can act on come without traceback: status 2 for a bad option, else 1."""
    try:
        app()
    except (ZinfError, OSError) as error:
        Console(stderr=True).print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, OptionError) else 1)


if __name__ == "__main__":
    main()
