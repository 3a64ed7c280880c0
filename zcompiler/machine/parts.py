"""What a session runs on. Nothing later writes a tier's or a lane's name into its code, but takes it from here."""

from __future__ import annotations

from dataclasses import dataclass

from zcompiler.machine.machine import Memory


@dataclass(frozen=True, slots=True)
class Parts:
    """`compute` is the tier that regions run from, `store` where shards rest, `threads` how many each I/O lane has."""

    tiers: tuple[Memory, ...]
    compute: str
    store: str
    threads: dict[str, int]


def cpu_only(memory: int) -> Parts:
    """Those of a machine without a device: regions run from host memory, of which a step may take `memory` bytes.

    Two threads a lane fill the queue of a disk; more would compete with computing for the cores.
    """
    tiers = (Memory("host", memory), Memory("nvme", None))
    return Parts(tiers, compute="host", store="nvme", threads={"nvme_read": 2, "nvme_write": 2})
