"""Schedules from `.zsched` files, from folders of them, and from bases."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from zcompiler.compare.base import parse_base
from zcompiler.compare.metrics import Side, updates_only
from zcompiler.errors import BadInput
from zcompiler.machine.work import Work
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.render import render_problems
from zcompiler.schedule.text import ScheduleSyntaxError, parse_schedule
from zcompiler.schedule.verify import verify

SUFFIX = ".zsched"
# What makes a schedule unreadable rather than wrong: nothing can be counted in it.
_MEANINGLESS = ("names-resolve", "well-formed")
_SEPARATOR = "# ----"
_FINAL = re.compile(r"\d+-final")


def read_side(paths: Sequence[Path]) -> Side:
    """The schedules in these files and folders, by name: a file's without its suffix, and in a folder with the way
    there. In a folder that the option `dump` has written, `graph0/09-final.zsched` is `graph0`, and what the passes
    left on the way there is not read.

    A `.json` file is a base (`compare/base.py`). BadInput for what is missing, unreadable, or there twice.
    """
    found: dict[str, Schedule] = {}
    compiled = None
    works: dict[str, Mapping[str, Work]] = {}
    measured: dict[str, int] = {}
    for path in paths:
        if path.suffix == ".json":
            base = parse_base(_text(path), str(path))
            schedules, compiled = base.schedules, base.compiled
            works |= base.works
            measured |= base.measured
        elif path.is_dir():
            schedules = {name: _schedule(file) for name, file in _files(path).items()}
        else:
            schedules = {path.name.removesuffix(SUFFIX): _schedule(path)}
        twice = sorted(set(found) & set(schedules))
        if twice:
            raise BadInput(f"{path}: another file or folder named before it has a schedule {twice[0]}, too")
        found.update(schedules)
    graphs = {name for name, schedule in found.items() if not updates_only(schedule)}
    return Side(found, compiled, works if graphs <= works.keys() else {}, measured)


def holds_schedules(path: Path) -> bool:
    """Whether this names schedules: a .zsched file, a base, or a folder that is no configuration of a model."""
    if path.is_dir():
        return not (path / "config.json").exists() or any(path.rglob(f"*{SUFFIX}"))
    if path.suffix != ".json" or not path.exists():
        return path.suffix == SUFFIX
    try:
        raw = json.loads(_text(path))
    except json.JSONDecodeError:
        return True  # which is said where it is read as a base
    return not (isinstance(raw, dict) and "model_type" in raw)


def require_rules(side: Side, where: str) -> None:
    """BadInput with the marked text where a schedule breaks a rule of the verifier: its figures would say nothing."""
    for name, schedule in side.schedules.items():
        problems = verify(schedule)
        if problems:
            shown = render_problems(schedule, problems)
            raise BadInput(f"{where}: the schedule {name} breaks rules, so there is nothing to compare\n{shown}")


def _files(folder: Path) -> dict[str, Path]:
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    if not files:
        raise BadInput(f"{folder}: no {SUFFIX} file in this folder; the option dump writes them")
    last: dict[Path, Path] = {}
    for file in files:
        if _FINAL.fullmatch(file.stem) and (other := last.setdefault(file.parent, file)) != file:
            raise BadInput(f"{file}: {other.name} beside it is of another run; empty the folder and dump again")
    found = {}
    for file in files:
        if file.parent not in last:
            found[file.relative_to(folder).as_posix().removesuffix(SUFFIX)] = file
        elif file == last[file.parent]:
            found[file.parent.relative_to(folder).as_posix() if file.parent != folder else folder.name] = file
    return found


def _schedule(path: Path) -> Schedule:
    text = _text(path)
    halves = [number for number, line in enumerate(text.splitlines(), 1) if line.rstrip() == _SEPARATOR]
    if halves:
        raise BadInput(
            f"{path}: line {halves[0]} ({_SEPARATOR}) parts two schedules, as in a golden: give the one to compare a "
            "file of its own"
        )
    try:
        schedule = parse_schedule(text)
    except ScheduleSyntaxError as error:
        raise BadInput(f"{path}: {error}") from error
    problems = [p for p in verify(schedule) if p.rule in _MEANINGLESS]
    if problems:
        raise BadInput(f"{path}: {render_problems(schedule, problems)}")
    return schedule


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name a {SUFFIX} file, a folder of them, or a base") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: no schedule: it is not UTF-8 text") from error
