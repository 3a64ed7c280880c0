"""Systems take turns in rounds: first each compiles and warms up, then all that are alive make steps, one at a time.

The reference lives through all rounds; beside it there is one peer at a time, or the one peer that zinf is compared
with and zinf at its shares, because not all systems fit in memory together. So every row has steps of the reference in
its own rounds to be compared with, whatever a machine and its disk did in the meantime.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from types import TracebackType
from typing import Any

from bench.peers.systems import System, limit_of, shares_of
from bench.record import record
from bench.turns import Child, Ended, reason

WARM = 3  # steps that compile, make optimizer states and fill caches
LOOKS = 2  # steps after them in which a peak is looked for
IN_A_ROW = 2  # steps in a turn: what a late update leaves over is paid by the step after it

Launch = Callable[[System, int | None], Child]  # with zinf's limit in bytes, None for a peer


@dataclass(frozen=True, slots=True)
class Turn:
    """The mean of some steps in a row, the peak apart. Seconds and bytes."""

    seconds: float
    read: float
    written: float
    peak: int

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, Any]]) -> Turn:
        means = (statistics.mean(step[name] for step in steps) for name in ("seconds", "read", "written"))
        return cls(*means, max(step["peak"] for step in steps))


@dataclass(slots=True)
class Row:
    """What came of a system: `error` if it did not get through, and then what it did before."""

    name: str
    share: Fraction | None = None
    limit: int | None = None
    losses: list[float] = field(default_factory=list)  # of all steps, from the very first
    turns: list[Turn] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)  # seconds of a step of the reference in the same rounds
    error: str | None = None

    def median(self, name: str) -> float:
        return statistics.median(getattr(turn, name) for turn in self.turns)

    @property
    def ratio(self) -> float:
        """Times the reference's step, which has none beside it."""
        return self.median("seconds") / statistics.median(self.beside) if self.beside else 1.0

    @property
    def peak(self) -> int:
        """The most in any counted step: bytes."""
        return max(turn.peak for turn in self.turns)


class Running:
    """A system's process, warm, and its row, which has the error if it fails; a context manager as Child is."""

    def __init__(self, launch: Launch, system: System, limit: int | None = None) -> None:
        self.row = Row(system.name, system.share, limit)
        self._child: Child | None = None
        self._ended: Ended | None = None
        start = time.perf_counter()
        try:
            self._child = launch(system, limit)
            self._child.ask("load")
            for _ in range(WARM):
                self._step()
            record("peers", system=system.name, limit=limit, warm_after=time.perf_counter() - start)
        except Ended as ended:
            self._fail(ended)
        except BaseException:
            self._close()
            raise

    @property
    def alive(self) -> bool:
        return self._child is not None

    def must_live(self) -> None:
        """Ended if it has failed."""
        if self._ended is not None:
            raise self._ended

    def turn(self, number: int) -> bool:
        """Make some steps; False if it has failed, now or before."""
        steps = self._steps(IN_A_ROW)
        if steps is None:
            return False
        turn = Turn.of(steps)
        self.row.turns.append(turn)
        record("peers", system=self.row.name, limit=self.row.limit, round=number, **asdict(turn))
        return True

    def peak(self) -> int | None:
        """The most that it holds in some steps: bytes. None if it has failed."""
        steps = self._steps(LOOKS)
        return None if steps is None else max(step["peak"] for step in steps)

    def _steps(self, count: int) -> list[Mapping[str, Any]] | None:
        if self._child is None:
            return None
        try:
            return [self._step() for _ in range(count)]
        except Ended as ended:
            self._fail(ended)
            return None

    def _step(self) -> Mapping[str, Any]:
        assert self._child is not None
        step = self._child.ask("step")
        self.row.losses.append(step["loss"])
        return step

    def _fail(self, ended: Ended) -> None:
        self._ended = ended
        self.row.error = reason(str(ended))
        record("peers", system=self.row.name, limit=self.row.limit, error=str(ended))
        self._close()

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def compared(launch: Launch, reference: System, peers: Sequence[System], against: str, rounds: int) -> list[Row]:
    """A row for the reference, each peer, and zinf at each share of what the peer named `against` takes.

    A system that fails has its error in its row. Ended if it is the reference: there is nothing to compare with then.
    """
    with Running(launch, reference) as first:
        first.must_live()
        rows = [first.row]
        for peer in peers:
            with ExitStack() as stack:
                group = [stack.enter_context(Running(launch, peer))]
                rows.append(group[0].row)
                if peer.name == against:
                    peak = group[0].peak()
                    for system in shares_of(against):
                        if peak is None:
                            error = f"no step: {against} failed, so there is no peak to take a share of"
                            rows.append(Row(system.name, system.share, error=error))
                            continue
                        group.append(stack.enter_context(Running(launch, system, limit_of(system.share, peak))))
                        rows.append(group[-1].row)
                take_turns(first, group, rounds)
        return rows


def take_turns(reference: Running, group: Sequence[Running], rounds: int) -> None:
    """Every other round goes the other way, so that none is always first. Ended if it is the reference."""
    for number in range(rounds):
        if not any(running.alive for running in group):
            return
        done = [running for running in (reference, *group)[:: 1 if number % 2 else -1] if running.turn(number)]
        reference.must_live()
        for running in group:
            if running in done:
                running.row.beside.append(reference.row.turns[-1].seconds)
