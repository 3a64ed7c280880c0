"""The `zinf` command."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zcompiler.errors import ZinfError
from zcompiler.options import OPTIONS, OptionError, options_table

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


_OF_A_SCRIPT = {"allow_extra_args": True, "ignore_unknown_options": True}
_Steps = Annotated[str, typer.Option(help="The first and the last step to record, counted from 1.")]


@app.command(context_settings={**_OF_A_SCRIPT, "allow_interspersed_args": False})
def trace(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; its own arguments follow.", exists=True)],
    steps: _Steps = "3:4",
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("trace.json"),
) -> None:
    """Run a script and record what some of its steps did: a trace for Perfetto, or for zinf report."""
    from zcompiler.cli.trace import trace as run
    from zcompiler.training.trace.steps import Window

    raise typer.Exit(run(script, context.args, Window.parse(steps), output, Console(stderr=True)))


@app.command(context_settings=_OF_A_SCRIPT)
def report(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="A recorded trace, or a script (*.py) and its arguments.", exists=True)
    ],
    steps: _Steps = "3:4",
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
) -> None:
    """Make one page of HTML of a trace: lanes, memory, plan, and what was predicted beside what was measured."""
    from zcompiler.cli.report.command import report as run
    from zcompiler.training.trace.steps import Window

    raise typer.Exit(run(source, context.args, Window.parse(steps), output, Console(stderr=True)))


def main() -> None:
    """Run the command. Errors that the user can act on come without traceback: status 2 for a bad option, else 1."""
    try:
        app()
    except (ZinfError, OSError) as error:
        Console(stderr=True).print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, OptionError) else 1)


if __name__ == "__main__":
    main()
