"""A recorded trace, read back from its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zcompiler.errors import ZinfError
from zcompiler.training.trace.recorded import FORMAT


class Event(NamedTuple):
    """Something on a track, in seconds."""

    track: str
    thread: int
    name: str
    begin: float
    end: float
    step: int
    details: Mapping[str, Any]


class Held(NamedTuple):
    """Bytes of a tier from `at` on, by what holds them."""

    at: float
    tier: str
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Side:
    """All that was measured, or planned: `events` by their begin, `steps` as begin and end in seconds."""

    title: str
    events: tuple[Event, ...]
    held: tuple[Held, ...]
    steps: tuple[tuple[float, float], ...]

    def on(self, track: str, step: int | None = None) -> list[Event]:
        return [e for e in self.events if e.track == track and step in (None, e.step)]


@dataclass(frozen=True, slots=True)
class Recording:
    """One session: `about` is what the file says of it in words."""

    measured: Side
    planned: Side | None
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class File:
    when: str
    first: int  # the number of the first step
    versions: Mapping[str, str]
    recordings: tuple[Recording, ...]


def read(path: Path) -> File:
    """What `Recorded.save` has written. ZinfError for anything else, OSError if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        head, events = content["zinf"], content["traceEvents"]
    except (ValueError, TypeError, KeyError) as error:
        raise ZinfError(
            f"{path} is no trace of zinf: wants a file that zinf trace or zcompiler.trace has written"
        ) from error
    if head["format"] != FORMAT:
        raise ZinfError(
            f"{path} has format {head['format']} (zinf {head['versions']['zinf']}), and this zinf reads {FORMAT}: "
            "record it again"
        )
    recordings = []
    for about in head["sessions"]:
        planned = None
        if about["planned"] is not None:
            planned = _side(events, about["planned"], about["planned_steps"])
        recordings.append(Recording(_side(events, about["pid"], about["steps"]), planned, about))
    return File(head["when"], head["first"], head["versions"], tuple(recordings))


def _side(listed: list[dict[str, Any]], pid: int, steps: list[list[float]]) -> Side:
    own = [e for e in listed if e["pid"] == pid]
    title = next(e["args"]["name"] for e in own if e["ph"] == "M" and e["name"] == "process_name")
    events = [
        Event(e["cat"], e["tid"], e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"]["step"], e["args"])
        for e in own
        if e["ph"] == "X"
    ]
    held = [Held(e["ts"] / 1e6, e["name"].removeprefix("held "), e["args"]) for e in own if e["ph"] == "C"]
    return Side(title, tuple(sorted(events, key=lambda e: e.begin)), tuple(held), tuple((b, e) for b, e in steps))
