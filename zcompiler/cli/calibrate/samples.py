"""What is measured, how often, and the medians of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: `rounds` over everything; `transfer` bytes each way on the disk, in pieces of `piece`; the
    `sides` of matmuls, and the one beside transfers; the bytes of all `operands` of matmuls of one side; the `heads` of
    attention: how many, rows and width of each; the bytes of a `tensor`, and of all parameters `updated`; `least`
    seconds for a sample, which is over after `most` calls."""

    rounds: int = 5
    transfer: int = 256 * MIB
    piece: int = 16 * MIB
    sides: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)
    operands: int = 512 * MIB
    heads: tuple[int, int, int] = (8, 512, 64)
    beside: int = 256
    tensor: int = 32 * MIB
    updated: int = 256 * MIB
    least: float = 0.03
    most: int = 2000
    layers: int = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """`take` measures once; `key` is where the figure stands in a machine file, such as "matmul.f32.64"."""

    key: str
    take: Callable[[], float]


def medians(samples: Sequence[Sample], rounds: int, advance: Callable[[str], None]) -> dict[str, float]:
    """Take all samples once a round, and of each its median: machines drift, and what is compared should drift alike.

    `advance` is told each key once its sample is taken.
    """
    taken: dict[str, list[float]] = {sample.key: [] for sample in samples}
    for _ in range(rounds):
        for sample in samples:
            taken[sample.key].append(sample.take())
            advance(sample.key)
    return {key: statistics.median(values) for key, values in taken.items()}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def quickest(call: Callable[[], object], effort: Effort) -> float:
    """Seconds of the quickest of several calls: what else the machine does only ever makes a short call longer."""
    return min(_times(call, effort))


def typical(call: Callable[[], object], effort: Effort) -> float:
    """Seconds of the median of several calls: of the many that a step makes, few are as quick as the quickest."""
    return statistics.median(_times(call, effort))


def _times(call: Callable[[], object], effort: Effort) -> Iterator[float]:
    spent, calls = 0.0, 0
    # Short calls are many anyhow. Of middling ones a few more: where threads have to wait for a processor that another
    # program has, that is some milliseconds, and one undisturbed call must be among them.
    while calls < 3 or (calls < effort.most and spent < effort.least) or (calls < 10 and spent < 8 * effort.least):
        took = seconds(call)
        yield took
        spent, calls = spent + took, calls + 1
