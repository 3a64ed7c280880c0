"""Store bandwidth through a lane, against plain threads that do nothing but direct I/O on the same disk.

    python -m bench.store [--nvme /path/on/a/disk] [--mib 256] [--rounds 7] [--threads 2]

The two take turns within each round, because a disk's speed drifts; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import disk_folder, entry, record, verdict
from runtime_ext.nvme.segment import CHUNK
from zcompiler.cli.calibrate.disk import Stored
from zcompiler.cli.calibrate.samples import seconds

Measure = Callable[[], None]


class Plain:
    """Threads that call preadv or pwritev over one file, chunk by chunk: what the disk gives."""

    def __init__(self, path: Path, nbytes: int, threads: int) -> None:
        self.nbytes, self.threads = nbytes, threads
        self.descriptor = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.descriptor, 0, nbytes)
        self.memory = mmap.mmap(-1, nbytes)

    def read(self) -> None:
        self.join(self.start(os.preadv))

    def write(self) -> None:
        self.join(self.start(os.pwritev))

    def start(self, call: Callable[[int, list[memoryview], int], int]) -> list[threading.Thread]:
        view = memoryview(self.memory)

        def work(first: int) -> None:
            for at in range(first * CHUNK, self.nbytes, self.threads * CHUNK):
                part = view[at : at + CHUNK]
                if call(self.descriptor, [part], at) != len(part):
                    raise OSError(f"short transfer at {at}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(self.threads)]
        for thread in threads:
            thread.start()
        return threads

    @staticmethod
    def join(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvme", type=Path, help="a directory on the disk to measure (default: zinf's own)")
    parser.add_argument("--mib", type=int, default=256, help="bytes moved in each measurement, a multiple of 16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="of each lane")
    options = parser.parse_args()
    nbytes, folder = options.mib << 20, Path(disk_folder(options.nvme))

    reader, writer = (Plain(folder, nbytes, options.threads) for _ in range(2))
    np.frombuffer(writer.memory, np.uint8)[:] = 1
    stored = Stored([folder], nbytes, options.threads, 16 << 20)

    def plain_mixed() -> None:
        threads = [*reader.start(os.preadv), *writer.start(os.pwritev)]
        Plain.join(threads)

    reader.write()  # unwritten space is not read from the disk
    cases: dict[str, tuple[Measure, Measure, int]] = {
        "read": (reader.read, stored.read, nbytes),
        "write": (writer.write, stored.write, nbytes),
        "mixed": (plain_mixed, stored.mixed, 2 * nbytes),
    }
    rates: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in cases}
    for number in range(options.rounds + 1):
        for name, (plain, ours, moved) in cases.items():
            order = [(plain, 0), (ours, 1)] if number % 2 else [(ours, 1), (plain, 0)]
            for measure, which in order:
                rate = moved / seconds(measure)
                if number:  # the first round touches memory for the first time
                    rates[name][which].append(rate)
    stored.close()

    result: dict[str, Any] = {"mib": options.mib, "rounds": options.rounds, "threads": options.threads}
    print(f"{'':8}{'plain GB/s':>12}{'store GB/s':>12}{'ratio':>8}{'':4}plain, lowest to highest")
    for name, (direct, through) in rates.items():
        slow, fast = statistics.median(direct), statistics.median(through)
        ratio = statistics.median(b / a for a, b in zip(direct, through, strict=True))
        result[name] = {"plain": round(slow / 1e9, 3), "store": round(fast / 1e9, 3), "ratio": round(ratio, 3)}
        spread = f"{min(direct) / 1e9:.2f} to {max(direct) / 1e9:.2f}"
        print(f"{name:8}{slow / 1e9:12.2f}{fast / 1e9:12.2f}{ratio:8.2f}{'':4}{spread}")
        verdict("store", f"the store's rate, over that of plain direct I/O, {name}", ratio)
    record("store", **result)
    return True


if __name__ == "__main__":
    entry(main)
