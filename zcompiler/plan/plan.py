"""A Plan: every decision about a graph or an update, frozen, with the reason for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Homes:
    """The tier in which each kind of model state rests."""

    params: str
    grads: str
    optimizer: str

    def __str__(self) -> str:
        return f"params={self.params} grads={self.grads} optimizer={self.optimizer}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the passes are told. `prefetch` is in bytes; `peak` gives bytes by tier as the finished schedule needs."""

    homes: Homes
    prefetch: int
    pipeline: str
    peak: dict[str, int]
    reasons: tuple[str, ...]
