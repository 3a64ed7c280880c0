"""What an op, or a region, asks of a machine: plain data, made from graphs by the analysis, priced by `Machine`."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Bytes of an element, for the operands of a matmul. Names as in schedules.
ITEM = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1}


@dataclass(frozen=True, slots=True)
class Matmul:
    """`count` products of `batch` matrices each, [m, k] @ [k, n]. `dtype` as schedules name it, such as "f32".
    `attention`: inside a kernel of attention, whose rate is its own."""

    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    count: int = 1
    attention: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations of one of the `count` products: 2 m n k batch."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def operand_bytes(self) -> int:
        """Bytes of both factors and of the result of one of the `count` products."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * ITEM.get(self.dtype, 4)

    @property
    def size(self) -> float:
        """The side of the square matmul that does the same number of operations."""
        return math.cbrt(self.flops / 2)


@dataclass(frozen=True, slots=True)
class Work:
    """`moved`: bytes that memory-bound ops read and write. `kernels`: calls of kernels, the matmuls' included. `made`:
    bytes of results and of large temporaries, for which the system has to find memory anew."""

    matmuls: tuple[Matmul, ...] = ()
    moved: int = 0
    kernels: int = 0
    made: int = 0
