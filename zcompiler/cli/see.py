"""`zinf demo`, `zinf trace`, `zinf report` and `zinf options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zcompiler.cli.base import SEE, Folders, app, flag
from zcompiler.options import OPTIONS, options_table


@app.command(rich_help_panel=SEE)
def demo(
    steps: Annotated[
        int, typer.Option(min=3, metavar="N", help="Training steps; memory and time are taken from the third on.")
    ] = 8,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens a step.")] = 512,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="zinf's memory limit.")] = "1.25GiB",
    nvme: Folders = None,
    inductor: Annotated[bool, flag("--inductor", "A third side: torch.compile as it is.")] = False,
    json_wanted: Annotated[
        bool, flag("--json", "Print all that was measured as JSON, and the rest to stderr.")
    ] = False,
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
        json_wanted=json_wanted,
        threads=threads,
        console=Console(stderr=json_wanted),
    )


_OF_A_SCRIPT = {"allow_extra_args": True, "ignore_unknown_options": True}
_Steps = Annotated[str, typer.Option(help="The first and the last step to record, counted from 1.")]


@app.command(rich_help_panel=SEE, context_settings={**_OF_A_SCRIPT, "allow_interspersed_args": False})
def trace(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; its own arguments follow.", exists=True)],
    steps: _Steps = "3:4",
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("trace.json"),
) -> None:
    """Run a script and record what some of its steps did.

    The trace is for Perfetto, or for zinf report.
    """
    from zcompiler.cli.trace import trace as run
    from zcompiler.training.trace.steps import Window

    raise typer.Exit(run(script, context.args, Window.parse(steps), output, Console(stderr=True)))


@app.command(rich_help_panel=SEE, context_settings=_OF_A_SCRIPT)
def report(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="A recorded trace, or a script (*.py) and its arguments.", exists=True)
    ],
    steps: _Steps = "3:4",
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
) -> None:
    """Make a page of HTML of a trace.

    Lanes, memory, plan, and what was predicted beside what was measured.
    """
    from zcompiler.cli.report.command import report as run
    from zcompiler.training.trace.steps import Window

    raise typer.Exit(run(source, context.args, Window.parse(steps), output, Console(stderr=True)))


@app.command(rich_help_panel=SEE)
def options(markdown: Annotated[bool, flag("--markdown", "As the table in docs/options.md.")] = False) -> None:
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
