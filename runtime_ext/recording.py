"""What a run really did, for whoever asked: transfers are stamped by the threads of their lane, runs and waits by the
thread that computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from runtime_ext.call import settle
from runtime_ext.interface import Arena, Event, Lane, Work
from zcompiler.schedule.model import Op


class Origin(NamedTuple):
    """The line of a schedule that something was done for."""

    schedule: str
    region: str
    op: Op


@dataclass(slots=True, eq=False)
class Span:
    """Something a lane did. `origin` None: no line of a schedule says so. `stamps` has, in seconds of the recorder's
    clock, when each of its pieces began and ended; it has none when the work never began. `error`: what it raised."""

    lane: str
    label: str
    issued: float
    nbytes: int = 0
    origin: Origin | None = None
    stamps: list[tuple[float, float]] = field(default_factory=list)
    error: str = ""

    @property
    def begin(self) -> float:
        return min(begin for begin, _ in self.stamps)

    @property
    def end(self) -> float:
        return max(end for _, end in self.stamps)


class Waited(NamedTuple):
    """The thread that computes stood still for a lane. `why` is "use" of what the event `cause` brings, "room" for an
    allocation, "lag" of what is released and still in use, or "end" of a phase."""

    lane: str
    cause: str
    why: str
    begin: float
    end: float


class Phase(NamedTuple):
    """A forward, a backward, or an update, from its first op until it gave back what it held."""

    schedule: str
    name: str
    begin: float
    end: float


class Held(NamedTuple):
    """Bytes of a tier from `at` on: in buffers of its arena, in tensors that a call holds outside, and at rest."""

    at: float
    tier: str
    buffers: int
    tensors: int
    resting: int


class Recorder:
    """Takes note of one runtime while it is the runtime's `recorder`. Any thread may call; nothing waits for another.

    `resting` tells the bytes that model states take in `tier`, the compute tier; it is asked at each run of regions.
    """

    def __init__(self, tier: str, resting: Callable[[], int], clock: Callable[[], float] = time.perf_counter) -> None:
        self.tier, self.clock = tier, clock
        self.spans: list[Span] = []
        self.waits: list[Waited] = []
        self.phases: list[Phase] = []
        self.held: list[Held] = []
        self._ask_resting = resting
        self._resting = 0
        self._events: list[Event] = []

    def submit(self, lane: Lane, work: Work, after: Sequence[Event], origin: Origin | None = None) -> Event:
        """Hand work to a lane, each piece of it stamped by the thread that does it."""
        span = Span(lane.name, work.label, self.clock(), work.nbytes, origin)
        self.spans.append(span)
        pieces = tuple(partial(self._stamped, span, piece) for piece in work.pieces)
        event = lane.submit(replace(work, pieces=pieces), after)
        self._events.append(event)
        return event

    @contextmanager
    def run(self, label: str, origin: Origin) -> Iterator[None]:
        """The compute of a region, on this thread."""
        span = Span(origin.op.lane, label, self.clock(), 0, origin)
        self.spans.append(span)
        try:
            yield
        except BaseException as error:
            span.error = repr(error)
            raise
        finally:
            span.stamps.append((span.issued, self.clock()))

    def waited(self, lane: str, cause: str, why: str, begin: float) -> None:
        """This thread has waited since `begin`."""
        self.waits.append(Waited(lane, cause, why, begin, self.clock()))

    def drain(self, lane: str, event: Event, cause: str) -> BaseException | None:
        """Wait until the event is done, at the end of a phase; gives back what was raised."""
        begin = self.clock()
        error = settle(event)
        self.waited(lane, cause, "end", begin)
        return error

    def regions_begin(self) -> None:
        """Regions are about to be issued: states may have come or gone."""
        self._resting = self._ask_resting()

    def sample(self, arenas: Mapping[str, Arena], tensors: int) -> None:
        """An op was issued. `tensors`: bytes of the compute tier that its call holds outside the arena."""
        at = self.clock()
        for tier, arena in arenas.items():
            outside = (tensors, self._resting) if tier == self.tier else (0, 0)
            self.held.append(Held(at, tier, arena.in_use, *outside))

    @contextmanager
    def phase(self, schedule: str, name: str) -> Iterator[None]:
        begin = self.clock()
        try:
            yield
        finally:
            self.phases.append(Phase(schedule, name, begin, self.clock()))

    def wait(self) -> None:
        """Return when all transfers are done, whatever became of them."""
        for event in self._events:
            try:
                event.wait()
            except Exception:  # its own call raises it; here only the time of its end counts
                continue
        self._events.clear()

    def _stamped(self, span: Span, piece: Callable[[], None]) -> None:
        begin = self.clock()
        try:
            piece()
        except BaseException as error:
            span.error = repr(error)
            raise
        finally:
            span.stamps.append((begin, self.clock()))


def phase(recorder: Recorder | None, schedule: str, name: str) -> AbstractContextManager[None]:
    """A phase of a schedule, noted if somebody records."""
    return nullcontext() if recorder is None else recorder.phase(schedule, name)
