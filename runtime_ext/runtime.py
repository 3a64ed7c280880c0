"""The parts a machine has, by name, and what they were seen to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime_ext.interface import Arena, Event, Lane, Peers, Store, Work
from runtime_ext.recording import Recorder

COPY_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Statistics:
    """Totals since the runtime was made; the difference of two is what happened between them.

    Bytes by (tier, kind of value); seconds by lane. `exposed` is the time computing waited for the lane.
    """

    bytes_read: Mapping[tuple[str, str], int] = field(default_factory=dict)
    bytes_written: Mapping[tuple[str, str], int] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)
    exposed: Mapping[str, float] = field(default_factory=dict)

    def hidden(self, lane: str) -> float:
        """Seconds in which the lane worked while computing did not wait for it."""
        return max(0.0, self.busy.get(lane, 0.0) - self.exposed.get(lane, 0.0))

    def __sub__(self, earlier: Statistics) -> Statistics:
        return Statistics(
            {key: value - earlier.bytes_read.get(key, 0) for key, value in self.bytes_read.items()},
            {key: value - earlier.bytes_written.get(key, 0) for key, value in self.bytes_written.items()},
            {key: value - earlier.busy.get(key, 0.0) for key, value in self.busy.items()},
            {key: value - earlier.exposed.get(key, 0.0) for key, value in self.exposed.items()},
        )


def copy_in_memory(label: str, source: np.ndarray, into: np.ndarray) -> Work:
    """Work that copies `source` to `into` (uint8, equally long): what h2d and d2h are where the device is emulated."""
    if source.nbytes != into.nbytes:
        raise ValueError(f"{label}: {source.nbytes} B do not fill {into.nbytes} B")

    def piece(at: int) -> Callable[[], None]:
        return lambda: np.copyto(into[at : at + COPY_CHUNK], source[at : at + COPY_CHUNK])

    return Work(label, into.nbytes, tuple(piece(at) for at in range(0, into.nbytes, COPY_CHUNK)))


@dataclass(slots=True)
class Runtime:
    """Lanes by name, arenas and stores by tier. `copy` makes the work of a reload or offload; `recorder` takes note of
    what is done while there is one."""

    lanes: Mapping[str, Lane]
    arenas: Mapping[str, Arena]
    stores: Mapping[str, Store]
    peers: Peers
    copy: Callable[[str, np.ndarray, np.ndarray], Work] = copy_in_memory
    clock: Callable[[], float] = time.perf_counter
    recorder: Recorder | None = None

    def submit(self, lane: str, work: Work, after: Sequence[Event] = ()) -> Event:
        """Queue work on a lane that no line of a schedule asks for."""
        if self.recorder is not None:
            return self.recorder.submit(self.lane(lane), work, after)
        return self.lane(lane).submit(work, after)

    def lane(self, name: str) -> Lane:
        if name not in self.lanes:
            raise LookupError(f"this machine has no lane {name}, only {', '.join(self.lanes)}")
        return self.lanes[name]

    def arena(self, tier: str) -> Arena:
        if tier not in self.arenas:
            raise LookupError(f"this machine has no managed memory in tier {tier}, only in {', '.join(self.arenas)}")
        return self.arenas[tier]

    def close(self) -> None:
        """Finish the work under way, then give files and memory up. Idempotent."""
        for lane in self.lanes.values():
            lane.close()
        for store in self.stores.values():
            store.close()
        for arena in self.arenas.values():
            arena.close()
