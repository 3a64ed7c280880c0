"""The plain form in which what was measured and what was planned are laid side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# The tracks that are no lane.
PHASES, WAITS = "phases", "waits"


@dataclass(frozen=True, slots=True)
class Activity:
    """Something on a track, a lane or one of the others, from `begin` to `end` in seconds, in the step of that index.
    `details` are for whoever looks at it: when it was `issued`, the line of the schedule, bytes, what was waited for.
    """

    track: str
    name: str
    begin: float
    end: float
    step: int
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    def moved(self, by: float) -> Activity:
        """The same `by` seconds later."""
        details = dict(self.details)
        if "issued" in details:
            details["issued"] = float(details["issued"]) + by
        return replace(self, begin=self.begin + by, end=self.end + by, details=details)


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes that a tier holds from `at` on, by what holds them."""

    at: float
    tier: str
    parts: Mapping[str, int]
    step: int


@dataclass(frozen=True, slots=True)
class Group:
    """All that was seen, or planned, on one clock. `steps` are the begin and end of each; what has a higher step is the
    begin of one that was not ended."""

    activities: tuple[Activity, ...]
    samples: tuple[Sample, ...]
    steps: tuple[tuple[float, float], ...]
