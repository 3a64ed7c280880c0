"""Schedules and plans as files, when the user asks for them (option `dump`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zcompiler.capture.pieces import Tile
from zcompiler.plan.plan import Plan
from zcompiler.schedule.model import Schedule


class Dump:
    """Numbered files in `folder/name`, in the order in which they come about; does nothing without a folder."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._folder = folder / name if folder is not None else None
        self._count = 0
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def schedule(self, title: str, schedule: Schedule) -> None:
        if self._folder is not None:
            (self._folder / f"{self._count:02}-{title}.zsched").write_text(str(schedule))
            self._count += 1

    def plan(self, text: str) -> None:
        if self._folder is not None:
            (self._folder / "plan.txt").write_text(text)


def dump_plans(folder: Path | None, text: str) -> None:
    """All plans so far as a file that can be given back; nothing without a folder."""
    if folder is not None:
        (folder / "plan.json").write_text(text, encoding="utf-8")


def plan_text(plan: Plan, machine: str, tiles: Iterable[Tile] = (), notes: Iterable[str] = ()) -> str:
    """A plan with its reasons, one a line."""
    rows: dict[str, list[int]] = {}
    for tile in set(tiles):
        rows.setdefault(tile.name, []).append(tile.length)
    lines = [f"machine: {machine}", f"pipeline: {plan.pipeline}", *plan.reasons]
    lines += [f"{name}: {len(own)} tiles of up to {max(own)} rows" for name, own in sorted(rows.items())]
    lines += notes
    return "\n".join(lines) + "\n"
