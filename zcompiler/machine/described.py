"""A described machine, until descriptions are read from files."""

from __future__ import annotations

from zcompiler.machine.machine import Lane, Machine, MatmulRates, Memory

LAPTOP = Machine(
    name="laptop",
    tiers=(Memory("host", 16 << 30), Memory("nvme", 256 << 30)),
    lanes=(Lane("nvme_read", 2e9, 100e-6), Lane("nvme_write", 1.5e9, 50e-6), Lane("nvme_mixed", 2e9, 100e-6)),
    matmuls=(
        MatmulRates("f32", ((64, 20e9), (256, 80e9), (1024, 150e9), (2048, 170e9))),
        MatmulRates("bf16", ((64, 20e9), (256, 80e9), (1024, 150e9), (2048, 170e9))),
    ),
    elementwise=20e9,
    reduction=20e9,
    copy=20e9,
    kernel=5e-6,
    region=50e-6,
    fused=4e9,
    unfused=1e9,
)
