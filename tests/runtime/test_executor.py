from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime_ext.call import Call, Stored
from runtime_ext.executor import Executor
from runtime_ext.host import HostArena, HostBuffer, host_runtime
from runtime_ext.interface import Work
from runtime_ext.runtime import Runtime
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Op, Region, Schedule
from zcompiler.schedule.text import parse_schedule

PAGE = 4096
LONG = 30.0

TEXT = """zsched 1
plan step rank=0 world=1
tier host 24KiB compute
tier nvme
value x0 input f32 4KiB
value l0 param f32 4KiB home=nvme
value x1 act f32 4KiB
value l1 param f32 4KiB home=nvme
value l1.g grad f32 4KiB home=nvme
value l0.g grad f32 4KiB home=nvme

region fwd/l0
  nvme_read  read           l0 nvme->host
  nvme_read  read           l1 nvme->host for bwd/l1
  compute    run            fwd/l0 reads x0 l0 writes x1 after read(l0)
  compute    release        l0:full@host after run(fwd/l0)
  live       host=8KiB

region bwd/l1
  nvme_read  read           l0 nvme->host for bwd/l0
  compute    run            bwd/l1 reads x1 l1 writes l1.g after read(l1)@fwd/l0
  compute    release        l1:full@host after run(bwd/l1)
  nvme_write write          l1.g host->nvme after run(bwd/l1)
  nvme_write release        l1.g:full@host after write(l1.g)
  live       host=8KiB

region bwd/l0
  compute    run            bwd/l0 reads x1 l0 writes l0.g after read(l0)@bwd/l1
  compute    release        l0:full@host after run(bwd/l0)
  compute    release        x1:full@host after run(bwd/l0)
  nvme_write write          l0.g host->nvme after run(bwd/l0)
  nvme_write release        l0.g:full@host after write(l0.g)
  live       host=0B

peak host 16KiB at run(bwd/l1)@bwd/l1
"""


@pytest.fixture
def runtime(disk: Path) -> Iterator[Runtime]:
    runtime = host_runtime([disk], 24 << 10)
    yield runtime
    runtime.close()


class Held:
    """A segment whose reads or writes wait for `opened`, and then fail if `error` says so."""

    def __init__(self, segment: Stored, opened: threading.Event, error: Exception | None = None) -> None:
        self.segment, self.opened, self.error = segment, opened, error
        self.nbytes = segment.nbytes

    def read(self, into: np.ndarray, start: int = 0) -> Work:
        return self.hold(self.segment.read(into, start))

    def write(self, source: np.ndarray, start: int = 0) -> Work:
        return self.hold(self.segment.write(source, start))

    def hold(self, work: Work) -> Work:
        def first() -> None:
            assert self.opened.wait(LONG)
            if self.error is not None:
                raise self.error
            for piece in work.pieces:
                piece()

        return Work(work.label, work.nbytes, (first,))


class Adding(Call):
    """Forward adds the parameter to the input; backward's gradient is activation times parameter."""

    def __init__(self, executor: Executor, segments: dict[str, Stored], schedule: Schedule) -> None:
        super().__init__(executor, schedule)
        self.segments = segments
        self.env["x0"] = np.full(PAGE, 5, np.uint8)
        self.hooks: dict[str, Callable[[], None]] = {}

    def segment(self, value: str) -> Stored:
        return self.segments[value]

    def compute(self, region: str, op: Op) -> None:
        self.hooks.get(region, lambda: None)()
        first, parameter = (bytes_of(self.env[name]) for name in op.reads)
        made = self.alloc(op.writes[0])
        made.array[:] = first + parameter if region.startswith("fwd") else first * parameter


def bytes_of(value: object) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    assert isinstance(value, HostBuffer)
    return value.array


def arena(runtime: Runtime) -> HostArena:
    found = runtime.arenas["host"]
    assert isinstance(found, HostArena)
    return found


def segments(runtime: Runtime) -> dict[str, Stored]:
    made: dict[str, Stored] = {}
    for fill, name in enumerate(("l0", "l1", "l0.g", "l1.g"), start=2):
        segment = runtime.stores["nvme"].create(name, "param", [PAGE])
        segment.map(0)[:] = fill
        made[name] = segment
    return made


def content(segment: Stored) -> np.ndarray:
    into = HostArena("host", PAGE).alloc(PAGE).array
    for piece in segment.read(into).pieces:
        piece()
    return into


def test_a_step_over_real_files_computes_and_stores_what_it_should(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    for _ in range(3):
        call = Adding(executor, stored, schedule)
        executor.run(schedule.regions[:1], call)
        executor.run(schedule.regions[1:], call)
        call.close()
        assert (content(stored["l1.g"]) == (5 + 2) * 3).all()
        assert (content(stored["l0.g"]) == (5 + 2) * 2).all()
        assert arena(runtime).in_use == 0
        assert peak(schedule)["host"][0] <= arena(runtime).peak <= 24 << 10
    statistics = executor.statistics()
    assert statistics.bytes_read == {("nvme", "param"): 9 * PAGE}
    assert statistics.bytes_written == {("nvme", "grad"): 6 * PAGE}
    assert set(statistics.exposed) <= {"nvme_read", "nvme_write"}
    assert statistics.busy["nvme_read"] > 0
    assert (executor.statistics() - statistics).bytes_read == {("nvme", "param"): 0}


def test_buffers_live_from_one_run_to_the_next_and_closing_frees_them(runtime: Runtime) -> None:
    schedule, executor = parse_schedule(TEXT), Executor(runtime)
    call = Adding(executor, segments(runtime), schedule)
    executor.run(schedule.regions[:1], call)
    assert set(call.env) == {"x0", "x1", "l1"}
    assert arena(runtime).in_use == 2 * PAGE
    call.close()
    call.close()
    assert arena(runtime).in_use == 0
    assert not call.env


def test_waiting_for_a_read_is_booked_as_exposed(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    call = Adding(executor, stored | {"l0": Held(stored["l0"], opened)}, schedule)
    timer = threading.Timer(0.05, opened.set)
    timer.start()
    executor.run(schedule.regions[:1], call)
    timer.join()
    call.close()
    statistics = executor.statistics()
    assert statistics.exposed["nvme_read"] > 0.03
    assert statistics.hidden("nvme_read") <= statistics.busy["nvme_read"] - 0.03


def test_a_buffer_being_written_is_freed_only_when_written_and_nobody_waits_for_it(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    call = Adding(executor, stored | {"l1.g": Held(stored["l1.g"], opened)}, schedule)
    executor.run(schedule.regions, call)
    assert PAGE <= arena(runtime).in_use <= 2 * PAGE
    opened.set()
    call.close()
    assert arena(runtime).in_use == 0
    assert (content(stored["l1.g"]) == 21).all()


def test_an_allocation_that_does_not_fit_waits_for_the_write(disk: Path) -> None:
    runtime = host_runtime([disk], 16 << 10)
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    call = Adding(executor, stored | {"l1.g": Held(stored["l1.g"], opened)}, schedule)
    filler = arena(runtime)
    blocked = []

    def fill() -> None:
        blocked.append(filler.alloc(PAGE))
        threading.Timer(0.05, opened.set).start()

    call.hooks["bwd/l0"] = fill
    executor.run(schedule.regions, call)
    assert opened.is_set()
    assert arena(runtime).peak == 16 << 10
    call.close()
    blocked[0].free()
    assert arena(runtime).in_use == 0
    runtime.close()


def test_an_error_in_compute_frees_everything_and_the_next_call_works(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    call = Adding(executor, stored, schedule)

    def fail() -> None:
        raise ValueError("no such operator")

    call.hooks["bwd/l1"] = fail
    with pytest.raises(ValueError, match="no such operator"):
        executor.run(schedule.regions, call)
    assert arena(runtime).in_use == 0
    following = Adding(executor, stored, schedule)
    executor.run(schedule.regions, following)
    following.close()
    assert (content(stored["l0.g"]) == 14).all()


def test_memory_under_a_running_read_is_not_freed_by_an_error_elsewhere(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    call = Adding(executor, stored | {"l1": Held(stored["l1"], opened)}, schedule)
    in_use: list[int] = []

    def fail() -> None:
        def open_later() -> None:
            in_use.append(arena(runtime).in_use)
            opened.set()

        threading.Timer(0.05, open_later).start()
        raise ValueError("no such operator")

    call.hooks["fwd/l0"] = fail
    with pytest.raises(ValueError, match="no such operator"):
        executor.run(schedule.regions, call)
    assert in_use == [2 * PAGE]
    assert arena(runtime).in_use == 0


def test_an_error_of_a_read_names_the_op_and_frees_everything(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    opened.set()
    bad = Held(stored["l0"], opened, OSError(5, "the disk is gone"))
    with pytest.raises(OSError, match="the disk is gone") as error:
        executor.run(schedule.regions, Adding(executor, stored | {"l0": bad}, schedule))
    assert error.value.__notes__ == ["read(l0)@fwd/l0"]
    assert arena(runtime).in_use == 0


def test_an_error_of_a_write_nobody_waits_for_is_raised_by_close(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    bad = Held(stored["l0.g"], opened, OSError(28, "the disk is full"))
    call = Adding(executor, stored | {"l0.g": bad}, schedule)
    executor.run(schedule.regions, call)
    opened.set()
    with pytest.raises(OSError, match="the disk is full"):
        call.close()
    assert arena(runtime).in_use == 0
    call.close()


def test_an_error_of_an_earlier_write_is_raised_by_the_next_run(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    opened.set()
    bad = Held(stored["l1.g"], opened, OSError(28, "the disk is full"))
    call = Adding(executor, stored | {"l1.g": bad}, schedule)
    executor.run(schedule.regions[:2], call)
    runtime.lanes["nvme_write"].submit(Work("flush", 0)).wait()
    with pytest.raises(OSError, match="the disk is full"):
        executor.run(schedule.regions[2:], call)
    assert arena(runtime).in_use == 0


def test_a_read_follows_a_write_of_the_same_bytes_by_an_earlier_call(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    # The first call writes 21 where l0 rests, and the write is still held when the second one reads l0.
    stored["l0"] = stored["l1.g"] = Held(stored["l0"], opened)
    opened.set()
    first = Adding(executor, stored, schedule)
    executor.run(schedule.regions[:1], first)
    opened.clear()
    executor.run([Region("bwd/l1", schedule.regions[1].ops[1:])], first)
    second = Adding(executor, stored, schedule)
    seen: list[int] = []
    second.hooks["fwd/l0"] = lambda: seen.append(int(bytes_of(second.env["l0"])[0]))
    threading.Timer(0.05, opened.set).start()
    executor.run(schedule.regions[:1], second)
    assert seen == [21]
    first.close()
    second.close()


def test_an_event_nobody_issued_is_named(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    with pytest.raises(LookupError, match=r"bwd/l1: run\(bwd/l1\) waits for read\(l1\)@fwd/l0, which this call"):
        executor.run(schedule.regions[1:], Adding(executor, stored, schedule))
    assert arena(runtime).in_use == 0


def test_a_world_of_one_has_no_collectives(runtime: Runtime) -> None:
    with pytest.raises(RuntimeError, match="all_gather in a world of one rank"):
        runtime.peers.all_gather(np.empty(1), np.empty(1))


def test_an_emulated_device_moves_bytes_through_host_memory(disk: Path) -> None:
    text = """zsched 1
plan step rank=0 world=1
tier device 8KiB compute
tier host 4KiB
tier nvme
value x0 input f32 4KiB
value l0 param f32 4KiB home=nvme
value x1 act f32 4KiB

region fwd/l0
  nvme_read  read           l0 nvme->host
  h2d        reload         l0 host->device after read(l0)
  h2d        release        l0:full@host after reload(l0)
  compute    run            fwd/l0 reads x0 l0 writes x1 after reload(l0)
  compute    release        l0:full@device after run(fwd/l0)
  d2h        offload        x1 device->host after run(fwd/l0)
  d2h        release        x1:full@device after offload(x1)
  live       device=0B host=4KiB

region bwd/l0
  h2d        reload         x1 host->device after offload(x1)@fwd/l0
  h2d        release        x1:full@host after reload(x1)
  compute    release        x1:full@device after reload(x1)
  live       device=0B host=0B

peak device 8KiB at run(fwd/l0)@fwd/l0
peak host 4KiB at read(l0)@fwd/l0
"""
    runtime = host_runtime([disk], 4 << 10, device_bytes=8 << 10)
    schedule, executor = parse_schedule(text), Executor(runtime)
    call = Adding(executor, segments(runtime), schedule)
    executor.run(schedule.regions[:1], call)
    executor.run([Region("bwd/l0", schedule.regions[1].ops[:2])], call)
    runtime.lanes["h2d"].submit(Work("flush", 0)).wait()
    made = call.env["x1"]
    assert isinstance(made, HostBuffer)
    assert (made.array == 7).all()
    assert runtime.arenas["device"].owns(made.array.ctypes.data)
    call.close()
    assert [one.in_use for one in runtime.arenas.values()] == [0, 0]
    assert {name: one.peak for name, one in runtime.arenas.items()} == {"host": 4 << 10, "device": 8 << 10}
    runtime.close()


def test_two_threads_may_run_different_calls(disk: Path) -> None:
    runtime = host_runtime([disk], 64 << 10)
    schedule, executor = parse_schedule(TEXT), Executor(runtime)
    errors: list[BaseException] = []

    def steps() -> None:
        stored = segments(runtime)
        try:
            for _ in range(20):
                call = Adding(executor, stored, schedule)
                executor.run(schedule.regions, call)
                call.close()
            assert (content(stored["l0.g"]) == 14).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=steps) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not errors
    assert arena(runtime).in_use == 0
    runtime.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_before_it_touches_anything(runtime: Runtime) -> None:
    schedule, executor, stored = parse_schedule(TEXT), Executor(runtime), segments(runtime)
    opened = threading.Event()
    call = Adding(executor, stored | {"l1.g": Held(stored["l1.g"], opened)}, schedule)
    executor.run(schedule.regions, call)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: executor.run(schedule.regions, call), call.close):
            try:
                use()
            except RuntimeError as error:
                refused += "forked child" in str(error)
        os._exit(0 if refused == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    opened.set()
    call.close()
    assert (content(stored["l1.g"]) == 21).all()
