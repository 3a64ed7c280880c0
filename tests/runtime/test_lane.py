from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from runtime_ext.host import HostLane
from runtime_ext.interface import Work

LONG = 30.0  # seconds; only a broken lane lets a test wait that long


def work(label: str, *pieces: Callable[[], None]) -> Work:
    return Work(label, 0, pieces)


def gate(opened: threading.Event) -> Callable[[], None]:
    def piece() -> None:
        assert opened.wait(LONG)

    return piece


def test_work_starts_in_order() -> None:
    lane = HostLane("l", threads=1)
    order: list[int] = []
    events = [lane.submit(work(f"w{i}", lambda i=i: order.append(i))) for i in range(20)]
    events[-1].wait()
    assert order == list(range(20))
    assert all(event.done() for event in events)
    lane.close()


def test_pieces_of_one_work_are_spread_over_the_threads() -> None:
    lane = HostLane("l", threads=2)
    meet = threading.Barrier(2, timeout=LONG)
    lane.submit(work("both", *[lambda: (meet.wait(), None)[1]] * 2)).wait()
    lane.close()


def test_the_next_work_starts_when_the_last_piece_was_taken_not_when_it_ended() -> None:
    lane = HostLane("l", threads=2)
    opened = threading.Event()
    first = lane.submit(work("first", gate(opened)))
    second = lane.submit(work("second", lambda: None))
    second.wait()
    assert not first.done()
    opened.set()
    first.wait()
    lane.close()


def test_work_waits_for_its_events_and_other_lanes_do_not() -> None:
    one, other = HostLane("one"), HostLane("other")
    opened = threading.Event()
    held = one.submit(work("held", gate(opened)))
    dependent = other.submit(work("dependent", lambda: None), after=[held])
    third = HostLane("third")
    third.submit(work("free", lambda: None)).wait()
    assert not dependent.done()
    opened.set()
    dependent.wait()
    for lane in (one, other, third):
        lane.close()


def test_work_without_pieces_is_done_when_its_events_are() -> None:
    lane, other = HostLane("l"), HostLane("o")
    opened = threading.Event()
    held = other.submit(work("held", gate(opened)))
    empty = lane.submit(work("empty"), after=[held])
    assert not empty.done()
    opened.set()
    empty.wait()
    lane.close()
    other.close()


def fail() -> None:
    raise OSError(5, "the disk is gone")


def test_an_error_reaches_every_waiter_and_names_the_work() -> None:
    lane = HostLane("l", threads=2)
    opened = threading.Event()

    def fail_late() -> None:
        assert opened.wait(LONG)
        fail()

    event = lane.submit(work("read(l0)@fwd/l0", fail_late))
    seen: list[BaseException] = []

    def waiter() -> None:
        try:
            event.wait()
        except OSError as error:
            seen.append(error)

    waiters = [threading.Thread(target=waiter) for _ in range(3)]
    for thread in waiters:
        thread.start()
    opened.set()
    for thread in waiters:
        thread.join(LONG)
    assert len(seen) == 3
    assert seen[0].__notes__ == ["read(l0)@fwd/l0"]
    lane.close()


def test_what_depends_on_failed_work_fails_alike_and_what_does_not_goes_on() -> None:
    lane, other = HostLane("l"), HostLane("o")
    ran: list[str] = []
    bad = lane.submit(work("bad", fail))
    here = lane.submit(work("here", lambda: ran.append("here")), after=[bad])
    there = other.submit(work("there", lambda: ran.append("there")), after=[bad])
    free = lane.submit(work("free", lambda: ran.append("free")))
    for event in (bad, here, there):
        with pytest.raises(OSError, match="the disk is gone"):
            event.wait()
    free.wait()
    assert ran == ["free"]
    lane.close()
    other.close()


def test_failed_work_is_done_only_when_its_running_pieces_have_ended() -> None:
    lane = HostLane("l", threads=2)
    opened, started, skipped = threading.Event(), threading.Event(), []

    def slow() -> None:
        started.set()
        assert opened.wait(LONG)

    def bad() -> None:
        assert started.wait(LONG)
        fail()

    event = lane.submit(work("w", slow, bad, *[lambda: skipped.append(1)] * 5))
    next_one = lane.submit(work("next", lambda: None))
    next_one.wait()
    assert not event.done()
    opened.set()
    with pytest.raises(OSError):
        event.wait()
    assert not skipped
    lane.close()


def test_closing_finishes_what_was_submitted() -> None:
    lane = HostLane("l", threads=2)
    done: list[int] = []
    for i in range(10):
        lane.submit(work(f"w{i}", lambda i=i: done.append(i)))
    lane.close()
    lane.close()
    assert sorted(done) == list(range(10))
    with pytest.raises(RuntimeError, match="lane l is closed: late came too late"):
        lane.submit(work("late"))


def test_an_idle_lane_keeps_no_memory_of_its_work() -> None:
    class Thing:
        pass

    lane, thing = HostLane("l", threads=2), Thing()
    gone = weakref.ref(thing)
    lane.submit(work("w", lambda thing=thing: None)).wait()
    del thing
    lane.submit(work("after", lambda: None)).wait()
    gc.collect()
    lane.close()
    assert gone() is None


def test_busy_time_counts_work_in_progress_once_and_not_the_waiting() -> None:
    lane, other = HostLane("l", threads=2), HostLane("o")
    assert lane.busy_seconds() == 0
    opened, running = threading.Event(), threading.Event()

    def piece() -> None:
        running.set()
        assert opened.wait(LONG)

    held = other.submit(work("held", gate(running)))
    start = time.perf_counter()
    events = [lane.submit(work(f"w{i}", piece)) for i in range(2)]
    waiting = lane.submit(work("waiting"), after=[held])
    assert running.wait(LONG)
    assert lane.busy_seconds() > 0
    opened.set()
    for event in (*events, waiting):
        event.wait()
    assert lane.busy_seconds() <= time.perf_counter() - start
    still = lane.busy_seconds()
    assert lane.busy_seconds() == still
    lane.close()
    other.close()


def test_a_lane_has_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="lane l wants at least one thread"):
        HostLane("l", threads=0)
