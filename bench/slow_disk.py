"""A disk that reads, or writes, no faster than a given rate, however it is asked: one request after another, each as
long as its bytes take.

The kernel's own throttle (bench.cgroup) keeps a rate on average over 0.1 s: who pauses gets a slice's bytes at full
speed afterwards, 30 MB at 300 MB/s. Requests smaller than that, with pauses between them, hardly meet it. A disk gives
no such credit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zcompiler.machine.machine import Machine
from zcompiler.schedule.simulate.costs import DISK, MIXED


def held_to(rate: float) -> dict[str, float]:
    """Settings of bench.trainer for `rate` MB/s each way; none for 0."""
    return {"read_rate": rate * 1e6, "write_rate": rate * 1e6} if rate else {}


def slowed(machine: Machine, rate: float) -> Machine:
    """The machine as it is while transfers either way are held to `rate` bytes a second."""
    most = {**dict.fromkeys(DISK, rate), MIXED: 2 * rate}
    held = (replace(one, bandwidth=min(one.bandwidth, most.get(one.name, one.bandwidth))) for one in machine.lanes)
    return replace(machine, lanes=tuple(held))


class SlowTransfers:
    """A `preadv` or `pwritev` that returns when a disk of `rate` bytes a second would have, one request at a time."""

    def __init__(
        self,
        transfer: Callable[[int, Any, int], int],
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transfer, self._rate, self._clock, self._sleep = transfer, rate, clock, sleep
        self._lock = threading.Lock()
        self._free = 0.0  # when the disk has done all that it was asked so far

    def __call__(self, descriptor: int, buffers: Any, at: int) -> int:
        with self._lock:
            wanted = sum(memoryview(b).nbytes for b in buffers)
            self._free = done = max(self._free, self._clock()) + wanted / self._rate
        count = self._transfer(descriptor, buffers, at)
        self._sleep(max(0.0, done - self._clock()))
        return count
