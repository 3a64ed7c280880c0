"""Machines for tests: any valid one, and a small one to take apart."""

from __future__ import annotations

from hypothesis import strategies as st

from zcompiler.machine.file import DEVICE_LANES, DISK_LANES
from zcompiler.machine.machine import Lane, Machine, MatmulRates, Memory
from zcompiler.machine.work import ITEM

SMALL = """
zinf-machine = 1
name = "small"
measured = ["lanes.nvme_read"]
[tiers]
host = "2GiB"
nvme = "unlimited"
[lanes]
nvme_read = {bandwidth = "1GB/s", latency = "1ms"}
nvme_write = {bandwidth = "500MB/s", latency = "2ms"}
nvme_mixed = {bandwidth = "1.2GB/s", latency = "1ms"}
[matmul.f32]
10 = "1GFLOP/s"
100 = "10GFLOP/s"
[memory]
elementwise = "4GB/s"
reduction = "5GB/s"
copy = "6GB/s"
fresh = "2GB/s"
[calls]
kernel = "10us"
region = "50us"
[update]
fused = "2GB/s"
unfused = "500MB/s"
"""

RATES = st.floats(1e-3, 1e18)
CAPACITIES = st.none() | st.integers(1, 2**60)


@st.composite
def matmul_rates(draw: st.DrawFn, dtype: str) -> MatmulRates:
    """Rates under which a larger matmul never takes less time."""
    sides = sorted(draw(st.sets(st.integers(1, 10**6), min_size=1, max_size=5)))
    rate, last, points = draw(RATES), sides[0], []
    for side in sides:
        rate *= (side / last) ** 3 * draw(st.floats(1e-3, 0.999)) if side > last else 1
        points.append((side, rate))
        last = side
    return MatmulRates(dtype, tuple(points))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    tiers = [Memory("host", draw(CAPACITIES)), Memory("nvme", draw(CAPACITIES))]
    lanes = list(DISK_LANES)
    if draw(st.booleans()):
        tiers.insert(0, Memory("device", draw(CAPACITIES)))
        lanes += [*DEVICE_LANES, "comm"]
    dtypes = draw(st.permutations(sorted({"f32"} | draw(st.sets(st.sampled_from(sorted(ITEM)), max_size=3)))))
    return Machine(
        name=draw(st.sampled_from(["laptop", "a b", 'quo"te', "größer", "back\\slash"])),
        tiers=tuple(tiers),
        lanes=tuple(Lane(name, draw(RATES), draw(st.floats(1e-9, 1e3)), draw(st.none() | RATES)) for name in lanes),
        matmuls=tuple(draw(matmul_rates(dtype)) for dtype in dtypes),
        elementwise=draw(RATES),
        reduction=draw(RATES),
        copy=draw(RATES),
        fresh=draw(RATES),
        kernel=draw(st.floats(1e-12, 10)),
        region=draw(st.floats(1e-12, 10)),
        fused=draw(RATES),
        unfused=draw(RATES),
        attention=tuple(
            (dtype, draw(RATES)) for dtype in draw(st.permutations(sorted(ITEM)))[: draw(st.integers(0, 2))]
        ),
        measured=tuple(draw(st.lists(st.sampled_from(["matmul.f32", "lanes.nvme_read"]), unique=True))),
    )
