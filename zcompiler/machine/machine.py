"""A machine as zinf sees it. Nothing later writes a tier's or a lane's name into its code, but takes it from here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """A tier: `capacity` in bytes (None: not limited by the plan)."""

    name: str
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """`compute` is the tier that regions run from, `store` where shards rest, `threads` how many each I/O lane has."""

    tiers: tuple[Memory, ...]
    compute: str
    store: str
    threads: dict[str, int]


def cpu_only(memory: int) -> Machine:
    """A machine without a device: regions run from host memory, of which a step may take `memory` bytes.

    Two threads a lane fill the queue of a disk; more would compete with computing for the cores.
    """
    tiers = (Memory("host", memory), Memory("nvme", None))
    return Machine(tiers, compute="host", store="nvme", threads={"nvme_read": 2, "nvme_write": 2})
