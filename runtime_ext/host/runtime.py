"""A CPU-only machine put together: two disk lanes, one arena, a store; and an emulated device where tests want one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtime_ext.host.arena import HostArena
from runtime_ext.host.lane import HostLane
from runtime_ext.interface import Arena, Lane, Work
from runtime_ext.nvme import NvmeStore
from runtime_ext.runtime import Runtime


class Alone:
    """The peers of a world of one: there are none, so a collective is a mistake of whoever made the schedule."""

    rank = 0
    world = 1

    def all_gather(self, shard: np.ndarray, full: np.ndarray) -> Work:
        raise RuntimeError("all_gather in a world of one rank: nothing is partitioned there, gather it by a read")

    def reduce_scatter(self, full: np.ndarray, shard: np.ndarray) -> Work:
        raise RuntimeError("reduce_scatter in a world of one rank: the gradient is complete there, write it as it is")


def host_runtime(
    paths: Sequence[Path | str], arena_bytes: int, *, device_bytes: int | None = None, threads: int = 2
) -> Runtime:
    """Lanes nvme_read and nvme_write of `threads` threads each, an arena of `arena_bytes`, a store on `paths`.

    With `device_bytes` also a device tier in ordinary memory with lanes h2d and d2h. StoreError when a path is refused.
    """
    store = NvmeStore(paths)
    names = {"nvme_read": threads, "nvme_write": threads}
    arenas: dict[str, Arena] = {"host": HostArena("host", arena_bytes)}
    if device_bytes is not None:
        arenas["device"] = HostArena("device", device_bytes)
        names |= {"h2d": 1, "d2h": 1}
    lanes: dict[str, Lane] = {name: HostLane(name, count) for name, count in names.items()}
    return Runtime(lanes, arenas, {"nvme": store}, Alone())
