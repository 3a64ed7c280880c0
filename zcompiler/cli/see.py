"""`zinf demo` and `zinf options`."""

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
