"""What the doctor says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Row:
    """`level`: "ok"; "note", where zinf works, but slower or with less; "problem", where it does not work until the
    remedy is applied."""

    about: str
    level: Literal["ok", "note", "problem"]
    said: str
    remedy: str = ""


def size(nbytes: int) -> str:
    """Roughly, for people: 12.3 GiB."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
