"""A `Machine`: how much its tiers hold, how fast its lanes move bytes and how fast it computes, as frozen data."""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass

from zcompiler.machine.work import ITEM, Matmul, Work


@dataclass(frozen=True, slots=True)
class Memory:
    """A tier: `capacity` in bytes (None: not limited by the plan)."""

    name: str
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Lane:
    """`bandwidth` in bytes a second once a transfer goes on, `latency` in seconds until it does. `interference`: how
    many bytes make what is computed meanwhile a second longer (None: transfers do not slow it)."""

    name: str
    bandwidth: float
    latency: float
    interference: float | None = None


@dataclass(frozen=True, slots=True)
class MatmulRates:
    """FLOP a second of square matmuls: `points` of (side, rate), the side rising."""

    dtype: str
    points: tuple[tuple[int, float], ...]

    def rate(self, side: float) -> float:
        """FLOP a second of a matmul that does as many operations as a square one of this side.

        Between two points log(rate) is linear in log(side), as rates rise by powers; outside them it is the nearest's.
        """
        sides = [known for known, _ in self.points]
        after = bisect(sides, side)
        if after == 0 or after == len(sides):
            return self.points[min(after, len(sides) - 1)][1]
        (low, slow), (high, fast) = self.points[after - 1 : after + 1]
        part = math.log(side / low) / math.log(high / low)
        return slow * (fast / slow) ** part


@dataclass(frozen=True, slots=True)
class Machine:
    """What one rank has to itself while all others of its node work, too.

    `elementwise`, `reduction` and `copy` are bytes read and written a second by memory-bound ops, `fresh` bytes a
    second of memory that is touched for the first time, on top of what is done with it. `kernel` and `region` are
    seconds that calling one costs on top; `attention` are FLOP a second inside a kernel of attention, by dtype, where
    they are known apart from a matmul's; `fused` and `unfused` are bytes of float32 parameters that AdamW updates a
    second, its states and gradients in the compute tier. `measured` names the tables of the file that were measured;
    the others are described.
    """

    name: str
    tiers: tuple[Memory, ...]
    lanes: tuple[Lane, ...]
    matmuls: tuple[MatmulRates, ...]
    elementwise: float
    reduction: float
    copy: float
    fresh: float
    kernel: float
    region: float
    fused: float
    unfused: float
    attention: tuple[tuple[str, float], ...] = ()
    measured: tuple[str, ...] = ()

    def compute_seconds(self, work: Work) -> float:
        """Seconds of a region's compute: matmuls, memory-bound bytes, kernel calls and new memory, one after another.

        A matmul takes as long as its operations or as moving its operands, whichever is more.
        """
        matmuls = sum(self._matmul_seconds(matmul) * matmul.count for matmul in work.matmuls)
        memory = work.moved / self.elementwise + work.made / self.fresh
        return matmuls + memory + work.kernels * self.kernel

    def lane_seconds(self, lane: str, nbytes: int) -> float:
        """Seconds of one transfer that has the lane to itself. LookupError for a lane that this machine has not."""
        for known in self.lanes:
            if known.name == lane:
                return known.latency + nbytes / known.bandwidth
        has = ", ".join(known.name for known in self.lanes)
        raise LookupError(f"machine {self.name} has no lane {lane}, only {has}")

    def update_seconds(self, param_bytes: int, fused: bool = False) -> float:
        """Seconds in which AdamW updates parameters of `param_bytes` bytes of float32, transfers left out."""
        return param_bytes / (self.fused if fused else self.unfused)

    def _matmul_seconds(self, matmul: Matmul) -> float:
        computing = matmul.flops / self._rate(matmul)
        if self._has_attention(matmul):
            return computing  # its scores never leave the cache
        return max(computing, matmul.operand_bytes / self.elementwise)

    def _rate(self, matmul: Matmul) -> float:
        """A dtype without rates of its own counts as float32, and wider ones as that much slower."""
        if self._has_attention(matmul):
            return dict(self.attention)[matmul.dtype]
        rates = {known.dtype: known for known in self.matmuls}
        if matmul.dtype in rates:
            return rates[matmul.dtype].rate(matmul.size)
        return rates["f32"].rate(matmul.size) / max(1.0, ITEM.get(matmul.dtype, 4) / ITEM["f32"])

    def _has_attention(self, matmul: Matmul) -> bool:
        """Whether it is priced by the measured rate of its kernel."""
        return matmul.attention and matmul.dtype in dict(self.attention)
