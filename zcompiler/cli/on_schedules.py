"""`zinf dump`, `zinf explain`, `zinf diff`, `zinf check` and `zinf opt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zcompiler.cli.asked import TARGET, Asked, takes_target_options
from zcompiler.cli.base import SCHEDULES, Json, app, flag


@app.command(rich_help_panel=SCHEDULES)
@takes_target_options
def dump(
    target: Annotated[str, typer.Argument(help=TARGET)],
    asked: Asked,
    passes: Annotated[str | None, typer.Option(help="Run these passes instead of the plan's.")] = None,
    after: Annotated[str | None, typer.Option(help="The schedule after this pass, or `all`; `bare` is before.")] = None,
    ops: Annotated[bool, typer.Option("--ops", help="The captured operators, region by region.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Where everything rests, and why.")] = False,
    times: Annotated[bool, typer.Option("--times", help="When each op runs on the machine, and a summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything but the operators as one document.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write files there, as the option dump does.")] = None,
    update: Annotated[bool, typer.Option("--update/--no-update", help="With the optimizer step, or without.")] = True,
) -> None:
    """Show what zinf would do with a model: plan and schedules.

    From its shapes alone: nothing is allocated, compiled or run.
    """
    options = asked.options()  # what is wrong is said before torch is imported
    from zcompiler.cli.dump.command import dump as run
    from zcompiler.cli.dump.show import Wanted as Shown

    run(
        asked.wanted(target),
        options,
        Shown(after, ops, plan, times, as_json),
        passes=passes,
        autocast=asked.autocast,
        output=output,
        update=update,
        echo=lambda text: typer.echo(text, nl=False),
        warn=lambda text: typer.echo(f"warning: {text}", err=True),
    )


@app.command(rich_help_panel=SCHEDULES)
@takes_target_options
def explain(
    target: Annotated[str, typer.Argument(help=f"{TARGET} Or a .zsched file.")],
    asked: Asked,
    tries: Annotated[bool, typer.Option("--tries/--no-tries", help="Plan again with changes that may help.")] = True,
    as_json: Json = False,
) -> None:
    """Say in words why a plan is as it is, and what would help.

    Where states rest, what the peak of memory is made of, what computing waits for; and changes that were planned.
    """
    from zcompiler.cli.explain import explain as run

    run(target, asked, tries=tries, as_json=as_json)


@app.command(rich_help_panel=SCHEDULES)
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A .zsched file, a folder of them, or a base.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    unified: Annotated[bool, typer.Option("--unified", "-u", help="A plain diff of the texts instead.")] = False,
    as_json: Json = False,
) -> None:
    """Say how two schedules differ, and what it costs.

    Whatever names they use. Ends with status 1 if they differ, else 0.
    """
    from zcompiler.cli.diff import diff as run

    raise typer.Exit(run(a, b, unified=unified, as_json=as_json))


@app.command(rich_help_panel=SCHEDULES)
@takes_target_options
def check(
    new: Annotated[list[str], typer.Argument(metavar="NEW...", help=f"{TARGET} Or files and folders of .zsched text.")],
    against: Annotated[Path, typer.Option(help="The base (.json), or files as for NEW, to be no worse than.")],
    asked: Asked,
    run: Annotated[bool, typer.Option("--run", help="Train the model as well, and compare its times.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Make NEW the base.")] = False,
    tolerance: Annotated[
        list[str] | None, typer.Option(help="How much a kind of figure may rise, such as bytes=1%; again for more.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fail where schedules got worse than their base.

    That is, where a step moves, holds or waits for more. Ends with status 1 then, else 0. Without --machine a model is
    planned for the shipped laptop, so that every machine finds the same.
    """
    from zcompiler.cli.check import check as compare

    status = compare(new, asked, against, run=run, update=update, tolerances=tolerance or (), as_json=as_json)
    raise typer.Exit(status)


@app.command(rich_help_panel=SCHEDULES)
def opt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A schedule as text.", exists=True, dir_okay=False)],
    passes: Annotated[
        str | None, typer.Option(metavar="PASSES", help="Passes to run instead of those that the file names.")
    ] = None,
    print_after_each: Annotated[bool, flag("--print-after-each", "Print the schedule after each pass.")] = False,
    accept: Annotated[bool, flag("--accept", "Make the result the expected text in the file.")] = False,
) -> None:
    """Run passes on a .zsched file, verify it and print it.

    Passes are written like gather-params,prefetch-reads{distance=2} (quote them in a shell).
    """
    from zcompiler.cli.opt import opt as run

    typer.echo(run(file, passes, print_after_each, accept).rstrip("\n"))
