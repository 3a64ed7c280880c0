"""What `zcompiler.stats` returns, and how it is put together."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from runtime_ext.interface import Segment
from runtime_ext.runtime import Statistics

KINDS = ("param", "grad", "state", "act")


@dataclass(frozen=True, slots=True)
class Stats:
    """What has happened since the first compile, or since `reset_stats`, over all models with the same options.

    `since`: when counting began, in seconds since the epoch. `read` and `written`: bytes that moved, by tier and kind
    (param, grad, state, act). `peak`: the most bytes a step held in a tier, by what it held (buffers, activations,
    gradients in the making); `planned_peak`: what the plan expected at most, region temporaries included. `others`:
    bytes of the process that no plan counts: the interpreter, torch, compiled code, what the user holds; as last seen
    while no call was under way, None before that or where the system does not tell. `hidden` and
    `exposed`: seconds in which a lane worked while computing went on, and in which computing waited for it.
    `regions_compiled`: distinct regions. `fallbacks`: what could not be done as asked, in words.
    `holds`: by graph, up to which sizes its plan stays below the limit, where sizes change from call to call; for
    larger ones another graph is planned.
    `late`: steps whose update went on beside the forward after them. `machine`: the one that is planned for, and where
    its figures come from.
    """

    steps: int
    since: float
    read: Mapping[str, Mapping[str, int]]
    written: Mapping[str, Mapping[str, int]]
    peak: Mapping[str, int]
    planned_peak: Mapping[str, int]
    others: int | None
    hidden: Mapping[str, float]
    exposed: Mapping[str, float]
    graphs: int
    regions_compiled: int
    fallbacks: tuple[str, ...]
    late: int
    machine: str
    holds: Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class Ledger:
    """Bytes that really moved, by kind, over all segments there ever were."""

    _segments: weakref.WeakSet[Segment] = field(default_factory=weakref.WeakSet)
    _retired_read: Counter[str] = field(default_factory=Counter)
    _retired_written: Counter[str] = field(default_factory=Counter)

    def open(self, segment: Segment) -> None:
        self._segments.add(segment)

    def retire(self, segment: Segment) -> None:
        self._segments.discard(segment)
        self._retired_read[segment.kind] += segment.bytes_read
        self._retired_written[segment.kind] += segment.bytes_written

    def read(self) -> Counter[str]:
        return self._retired_read + (_summed((s.kind, s.bytes_read) for s in self._segments))

    def written(self) -> Counter[str]:
        return self._retired_written + (_summed((s.kind, s.bytes_written) for s in self._segments))


@dataclass(frozen=True, slots=True)
class Baseline:
    """The counters at the moment from which on `stats` counts."""

    since: float = field(default_factory=time.time)
    steps: int = 0
    late: int = 0
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    lanes: Statistics = field(default_factory=Statistics)


def by_kind(now: Counter[str], then: Counter[str]) -> dict[str, int]:
    return {kind: now[kind] - then[kind] for kind in KINDS}


def _summed(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for kind, size in pairs:
        total[kind] += size
    return total
