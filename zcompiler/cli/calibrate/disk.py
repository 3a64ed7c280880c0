"""A disk measured through the store and its lanes, the way a step uses them: many pieces in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from runtime_ext.host import HostArena, HostLane
from runtime_ext.interface import Event
from runtime_ext.nvme import NvmeStore
from zcompiler.cli.calibrate.samples import Effort, Sample, quickest, seconds
from zcompiler.layout import ALIGNMENT


class Stored:
    """`nbytes` to read and as many to write, in segments of `piece` bytes, in nameless files in the folders `paths`.

    StoreError when a folder or its space will not do; nothing stays taken then.
    """

    def __init__(self, paths: Sequence[Path], nbytes: int, threads: int, piece: int) -> None:
        self.nbytes = nbytes
        count = nbytes // piece
        self.store = NvmeStore(paths)
        try:
            self.sources = [self.store.create(f"r{i}", "param", [piece]) for i in range(count)]
            self.targets = [self.store.create(f"w{i}", "param", [piece]) for i in range(count)]
        except BaseException:
            self.store.close()
            raise
        self.arena = HostArena("host", 2 * nbytes)
        self.into = [self.arena.alloc(piece).array for _ in range(count)]
        self.outof = [self.arena.alloc(piece).array for _ in range(count)]
        self.lanes = HostLane("nvme_read", threads), HostLane("nvme_write", threads)
        for array in (*self.into, *self.outof):
            array[:] = 1  # memory that nobody has touched would be slower the first time
        # And unwritten space is not read from the disk.
        _wait([self.lanes[1].submit(s.write(a)) for s, a in zip(self.sources, self.outof, strict=True)])

    def read(self) -> None:
        _wait(self._reads())

    def write(self) -> None:
        _wait(self._writes())

    def mixed(self) -> None:
        _wait([*self._reads(), *self._writes()])

    def page_read(self) -> None:
        _wait([self._page_read()])

    def page_write(self) -> None:
        _wait([self._page_write()])

    def pages(self) -> None:
        _wait([self._page_read(), self._page_write()])

    def read_beside(self, compute: Callable[[], object]) -> float:
        return _beside(self._reads, compute)

    def write_beside(self, compute: Callable[[], object]) -> float:
        return _beside(self._writes, compute)

    def close(self) -> None:
        """Give files and memory back, once what is under way has ended."""
        for lane in self.lanes:
            lane.close()
        self.store.close()
        self.into, self.outof = [], []
        self.arena.close()

    def _reads(self) -> list[Event]:
        return [self.lanes[0].submit(s.read(a)) for s, a in zip(self.sources, self.into, strict=True)]

    def _writes(self) -> list[Event]:
        return [self.lanes[1].submit(s.write(a)) for s, a in zip(self.targets, self.outof, strict=True)]

    def _page_read(self) -> Event:
        return self.lanes[0].submit(self.sources[0].read(self.into[0][:ALIGNMENT]))

    def _page_write(self) -> Event:
        return self.lanes[1].submit(self.targets[0].write(self.outof[0][:ALIGNMENT]))


def disk_samples(stored: Stored, effort: Effort) -> list[Sample]:
    """The three lanes of a disk: bytes a second over the whole, seconds that a single page takes, and of each direction
    the bytes that make matmuls beside them a second longer.

    When both directions are at work, their bytes count together.
    """
    n = stored.nbytes
    lanes: list[tuple[str, Callable[[], None], int, Callable[[], None]]] = [
        ("nvme_read", stored.read, n, stored.page_read),
        ("nvme_write", stored.write, n, stored.page_write),
        ("nvme_mixed", stored.mixed, 2 * n, stored.pages),
    ]
    samples = []
    for name, whole, nbytes, page in lanes:
        samples.append(Sample(f"lanes.{name}.bandwidth", lambda f=whole, n=nbytes: n / seconds(f)))  # type: ignore[misc]
        samples.append(Sample(f"lanes.{name}.latency", lambda f=page: quickest(f, effort)))  # type: ignore[misc]
    a = torch.ones(effort.beside, effort.beside)
    result = torch.empty_like(a)
    for name, beside in (("nvme_read", stored.read_beside), ("nvme_write", stored.write_beside)):

        def take(beside: Callable[[Callable[[], object]], float] = beside) -> float:
            # What another program took from the two differs; no transfer costs less than this.
            return n / max(beside(lambda: torch.mm(a, a, out=result)), n / 1e12)

        samples.append(Sample(f"lanes.{name}.interference", take))
    return samples


def _beside(transfers: Callable[[], list[Event]], compute: Callable[[], object]) -> float:
    """Seconds that calls take longer while the transfers go on than the same calls alone."""
    events, calls = [], 0

    def slowed() -> None:
        nonlocal calls
        events.extend(transfers())
        while not all(event.done() for event in events):
            compute()
            calls += 1

    took = seconds(slowed)
    _wait(events)
    return took - seconds(lambda: [compute() for _ in range(calls)])


def _wait(events: list[Event]) -> None:
    for event in events:
        event.wait()
