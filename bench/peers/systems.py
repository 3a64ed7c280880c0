"""What is compared: the peers, and zinf at shares of what one of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

MIB = 1 << 20
SHARES = (Fraction(1), Fraction(1, 2), Fraction(1, 4))


@dataclass(frozen=True, slots=True)
class System:
    """A row of the table: `module` in the virtual environment `environment`, None for the one that this runs in.

    `share` is the part that zinf may take, as its limit, of what the system `of` was seen to take.
    """

    name: str
    module: str
    environment: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: Fraction | None = None


REFERENCE = System("eager", "bench.peers.eager", "torch")
PEERS = (
    System("inductor", "bench.peers.inductor", "torch"),
    System("fsdp2", "bench.peers.fsdp2", "torch"),
    System(
        "deepspeed",
        "bench.peers.deepspeed",
        "deepspeed",
        {"sub_group": 10**7, "buffers": 5, "pipeline": False},
    ),
    System(
        "deepspeed-pipelined",
        "bench.peers.deepspeed",
        "deepspeed",
        {"sub_group": 10**7, "buffers": 12, "pipeline": True},
    ),
)
BY_NAME: Mapping[str, System] = {peer.name: peer for peer in PEERS}


def shares_of(peer: str) -> tuple[System, ...]:
    """zinf at each share of what `peer` takes."""
    names = {share: f"{share} of {peer}'s peak" if share < 1 else f"{peer}'s peak" for share in SHARES}
    return tuple(System(f"zinf at {name}", "bench.peers.zinf", share=share) for share, name in names.items())


def limit_of(share: Fraction, peak: int) -> int:
    """zinf's option memory: that share of `peak` bytes, in whole MiB."""
    return int(share * peak) // MIB * MIB
