"""The slow disk of the benchmarks, on a clock of its own."""

from __future__ import annotations

import pytest

from bench.slow_disk import SlowTransfers, held_to, slowed
from zcompiler.machine.choose import shipped_machine
from zcompiler.schedule.simulate.costs import shared_lanes


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_each_request_takes_as_long_as_its_bytes_and_a_pause_gives_no_credit() -> None:
    clock, asked = Clock(), []

    def preadv(descriptor: int, buffers: list[bytearray], at: int) -> int:
        asked.append((descriptor, at))
        clock.now += 0.01  # what the real disk takes is part of it
        return sum(len(b) for b in buffers)

    read = SlowTransfers(preadv, 1000.0, lambda: clock.now, clock.sleep)
    assert read(3, [bytearray(100), bytearray(100)], 0) == 200
    assert clock.now == pytest.approx(100.2)
    clock.now += 5.0
    assert read(3, [bytearray(500)], 200) == 500
    assert clock.now == pytest.approx(105.7)
    assert asked == [(3, 0), (3, 200)]


def test_requests_at_once_are_served_one_after_another() -> None:
    clock, slept = Clock(), []
    read = SlowTransfers(lambda descriptor, buffers, at: 100, 1000.0, lambda: clock.now, slept.append)
    read(3, [bytearray(100)], 0)
    read(3, [bytearray(100)], 100)
    assert slept == [pytest.approx(0.1), pytest.approx(0.2)]


def test_a_machine_is_described_with_the_rate_that_its_disk_is_held_to() -> None:
    laptop = shipped_machine("laptop")
    rates = {lane.name: lane.bandwidth for lane in slowed(laptop, 500e6).lanes}
    assert rates == {"nvme_read": 500e6, "nvme_write": 500e6, "nvme_mixed": 1000e6}
    assert set(shared_lanes(slowed(laptop, 500e6)).values()) == {1.0}  # neither way slows the other
    assert slowed(laptop, 100e9) == laptop
    assert held_to(0) == {} and held_to(500) == {"read_rate": 500e6, "write_rate": 500e6}
