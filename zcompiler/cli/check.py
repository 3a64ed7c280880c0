"""`zinf check`: fail where a step has become worse than its base."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from zcompiler.cli.asked import Asked
from zcompiler.cli.tables import new_console, print_table
from zcompiler.compare.base import format_base
from zcompiler.compare.files import holds_schedules, read_side, require_rules
from zcompiler.compare.gate import BETTER, SAME, SHOWN, WITHIN, WORSE, Finding, judge, parse_tolerances
from zcompiler.compare.metrics import Side, updates_only
from zcompiler.compare.numbers import change, plural, shown
from zcompiler.compare.sides import compare_sides
from zcompiler.errors import BadInput, DoesNotFit, ZinfError
from zcompiler.machine.choose import OTHERWISE
from zcompiler.options import OptionError

_STYLES = {WORSE: "bold red", BETTER: "green", WITHIN: "yellow", SAME: "dim", SHOWN: "dim"}


def check(
    names: Sequence[str],
    asked: Asked,
    against: Path,
    *,
    run: bool = False,
    update: bool = False,
    tolerances: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Compare the schedules of a target, or those in files and folders, with those in `against`; 1 where one of their
    figures is worse, else 0.

    `run` trains the target, too, and compares what was measured; else what the base says of that is left out. `update`
    writes the new ones to `against`, a `.json` file, instead. BadInput for what cannot be read or breaks rules, and as
    `described` for a target; DoesNotFit where it no longer fits.
    """
    allowed = parse_tolerances(tolerances)
    given, command = " ".join(names), f"{_command(names, asked, against)}{' --run' if run else ''}"
    if update and against.suffix != ".json":
        raise BadInput(f"{against}: --update writes a base, whose name ends in .json")
    if not update and not against.exists():
        raise BadInput(f"{against}: no such base; make one: {command} --update")
    new = _side(names, asked, run)
    require_rules(new, given)
    if update:
        return _update(new, against)
    old = read_side([against])
    old = old if run else replace(old, measured={})
    require_rules(old, str(against))
    compared = compare_sides(old, new)
    gone = sorted(compared.old.schedules.keys() - new.schedules.keys())
    updates = [name for name in gone if updates_only(compared.old.schedules[name])]
    if updates:
        raise BadInput(
            f"{against} has the schedule of an optimizer step, {updates[0]}, and there is none in {given}, which would "
            "look better for what is missing: dump after the first optimizer.step(), and name that file or folder, too"
        )
    findings = judge(compared, allowed)
    worse = any(found.verdict == WORSE for found in findings)
    if as_json:
        rows = [{**asdict(f), "metric": f.metric._asdict()} for f in findings]
        typer.echo(json.dumps({"worse": worse, "findings": rows}, indent=1))
    else:
        console = new_console()
        for name in gone:
            console.print(f"The schedule {name} is there no longer.", markup=False)
        _show(console, findings, _Words(command, _diff(names, asked, against)), against)
    return 1 if worse else 0


def _side(names: Sequence[str], asked: Asked, run: bool) -> Side:
    if _are_schedules(names):
        if run:
            raise BadInput(f"--run trains a model, and {' '.join(names)} names schedules: nothing can be run")
        if said := asked.said():
            raise BadInput(
                f"--{said[0]} says how a model is planned, and {' '.join(names)} names schedules that are there"
            )
        return read_side([Path(name) for name in names])
    options = replace(asked, machine=_machine(asked)).options()
    from zcompiler.cli.dump.describing import described, side_of
    from zcompiler.cli.run_target import measured

    wanted = asked.wanted(names[0])
    try:
        found = described(wanted, options, autocast=asked.autocast)
        ratios = measured(wanted, options, autocast=asked.autocast) if run else {}
    except (BadInput, DoesNotFit, OptionError):
        raise
    except ZinfError as error:  # 1 is the status of what is worse
        raise BadInput(str(error)) from error
    for note in found.notes:
        typer.echo(f"warning: {note}", err=True)
    return replace(side_of(found), measured=ratios)


def _update(new: Side, against: Path) -> int:
    text = format_base(new)
    known = against.exists() and against.read_bytes() == text.encode()
    if not known:
        against.write_text(text, encoding="utf-8")
    typer.echo(f"{against}: {'unchanged' if known else 'written'}, {plural(len(new.schedules), 'schedule')}")
    return 0


@dataclass(frozen=True, slots=True)
class _Words:
    """The command that was given, and the one that shows every op."""

    command: str
    diff: str


def _show(console: Console, findings: Sequence[Finding], words: _Words, against: Path) -> None:
    changed = [found for found in findings if found.before != found.after]
    worse = [found for found in findings if found.verdict == WORSE]
    if changed:
        print_table(console, ("a step", "before", "after", "change", ""), map(_row, changed))
    for found in worse:
        rise = change(found.metric, found.before, found.after)
        console.print(Text(f"{found.metric} {rise}: {found.because}", "red"), soft_wrap=True)
    judged = [found for found in findings if found.verdict != SHOWN]
    update = f": {words.command} --update" if against.suffix == ".json" else ""
    if worse:
        console.print(
            f"Worse than {against}: {len(worse)} of {plural(len(judged), 'figure')}.", markup=False, soft_wrap=True
        )
        console.print(f"Every op that differs: {words.diff}", markup=False, soft_wrap=True)
        if update:
            console.print(f"If this is what it should be{update}", markup=False, soft_wrap=True)
    elif any(found.verdict == BETTER for found in findings):
        keep = update or ", take it as the new base"
        console.print(f"Better than {against}. To keep it so{keep}", markup=False, soft_wrap=True)
    else:
        console.print(f"No worse than {against}, in {plural(len(judged), 'figure')}.", markup=False, soft_wrap=True)


def _row(found: Finding) -> tuple[Text | str, ...]:
    before, after = shown(found.metric, found.before), shown(found.metric, found.after)
    verdict = Text("" if found.verdict == SHOWN else found.verdict, _STYLES[found.verdict])
    return str(found.metric), before, after, change(found.metric, found.before, found.after), verdict


def _command(names: Sequence[str], asked: Asked, against: Path) -> str:
    return f"zinf check {shlex.join((*names, *asked.arguments()))} --against {against}"


def _diff(names: Sequence[str], asked: Asked, against: Path) -> str:
    if _are_schedules(names):
        return f"zinf diff {against} {names[0] if len(names) == 1 else 'NEW'}"
    planned = shlex.join((names[0], *replace(asked, machine=_machine(asked)).arguments()))
    return f"zinf dump {planned} --output NEW && zinf diff {against} NEW"


def _are_schedules(names: Sequence[str]) -> bool:
    return len(names) > 1 or holds_schedules(Path(names[0]))


def _machine(asked: Asked) -> str:
    """What this machine measures or has free must not decide what CI compares."""
    return asked.machine or OTHERWISE
