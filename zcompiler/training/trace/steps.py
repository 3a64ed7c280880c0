"""Which step a run is in, from what it is seen to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from zcompiler.errors import ZinfError

Turn = Literal["begin", "end", "drop"]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps `first` to `last`, counted from 1, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """`3:5`, or `3` alone. ZinfError for anything else."""
        found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last:
            raise ZinfError(f"steps cannot be {text!r}: wants the first and the last step to record, such as 3:4")
        return cls(first, last)


@dataclass(slots=True)
class Steps:
    """A step ends with an optimizer step; without any, with a graph's backward.

    Whether there is going to be an optimizer step, nobody knows before the first: until then backwards count, and then
    the count begins again. The methods tell what to do with the recording, in order; "drop" is for one that was begun
    by the other count.
    """

    window: Window | None
    backwards: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)

    @property
    def ends(self) -> list[float]:
        """When steps ended."""
        return self.updates or self.backwards

    def starts(self) -> tuple[Turn, ...]:
        return ("begin",) if self.window is None or self.window.first == 1 else ()

    def backward_ended(self, at: float) -> tuple[Turn, ...]:
        self.backwards.append(at)
        return () if self.updates else self._turn(len(self.backwards))

    def optimizer_stepped(self, at: float) -> tuple[Turn, ...]:
        self.updates.append(at)
        turn = self._turn(len(self.updates))
        if len(self.updates) == 1 and self.window is not None and 1 < self.window.first <= len(self.backwards) + 1:
            return ("drop", *turn)
        return turn

    def _turn(self, done: int) -> tuple[Turn, ...]:
        if self.window is not None and done == self.window.last:
            return ("end",)
        return ("begin",) if self.window is not None and done == self.window.first - 1 else ()
