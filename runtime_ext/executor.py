"""Issues the ops of a schedule in order: transfers to their lanes, compute on the calling thread, frees behind both."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from runtime_ext.call import Call, LaneEvent, Stored, settle
from runtime_ext.interface import Arena, Buffer, Event
from runtime_ext.recording import Origin, Recorder
from runtime_ext.runtime import Runtime, Statistics
from runtime_ext.transfers import Transfer, transfer
from zcompiler.schedule.flow import Place
from zcompiler.schedule.model import Op, Region


class _Done:
    """The event of work that ran on the calling thread."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


@dataclass(slots=True, eq=False)
class _Free:
    """A buffer that was released, to be freed once its users are done."""

    arena: Arena
    buffer: Buffer
    users: list[LaneEvent]


class Executor:
    """Runs regions over a Runtime. Several threads may run different calls at once.

    Memory follows the schedule: a release frees at once, or when the transfers that still use the buffer are done; an
    allocation that does not fit waits for those, in order, before it is a MemoryError. Two transfers of one segment of
    which one writes are kept in order, across calls too.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._frees: list[_Free] = []
        self._read: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._written: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._exposed: defaultdict[str, float] = defaultdict(float)
        self._last_write: WeakKeyDictionary[Stored, Event] = WeakKeyDictionary()
        self._reads_since: WeakKeyDictionary[Stored, list[Event]] = WeakKeyDictionary()

    def run(self, regions: Iterable[Region], call: Call) -> None:
        """Issue the ops of `regions` in order; returns after the last compute, while transfers may still be under way.

        When anything raises, here or in a lane: what is under way is waited for, all that the call holds is freed, and
        the error goes on to the caller. An error that came after the last `run` of this call is raised at once.
        RuntimeError in a forked child.
        """
        if not self.usable():
            raise RuntimeError(
                f"{call.schedule.name}: a forked child has no lanes: use the model in the process that compiled it"
            )
        try:
            for _, event in call.events.values():
                if event.done():
                    event.wait()
            issue = self._issue if self.runtime.recorder is None else self._issue_recorded(self.runtime.recorder)
            for region in regions:
                for op in region.ops:
                    issue(region.name, op, call)
        except BaseException:
            call.abandon()
            raise

    def usable(self) -> bool:
        """Whether this is the process that made it: a forked child has no lanes."""
        return os.getpid() == self._pid

    def statistics(self) -> Statistics:
        """What has happened so far."""
        busy = {name: lane.busy_seconds() for name, lane in self.runtime.lanes.items()}
        with self._lock:
            return Statistics(dict(self._read), dict(self._written), busy, dict(self._exposed))

    def alloc(self, tier: str, nbytes: int) -> Buffer:
        """A buffer of the tier's arena. When it does not fit, waits for released buffers that are still in use."""
        arena = self.runtime.arena(tier)
        while True:
            self.reap()
            try:
                return arena.alloc(nbytes)
            except MemoryError:
                with self._lock:
                    oldest = next((free for free in self._frees if free.arena is arena), None)
                if oldest is None:
                    if arena.capacity is not None and arena.in_use + nbytes > arena.capacity:
                        raise
                    # It fits by the numbers, only not in one piece.
                    return arena.alloc(nbytes, overflow=True)
            for lane, event in oldest.users:
                self._expose(lane, event, "room")

    def reap(self) -> None:
        """Free what was released and is no longer in use."""
        with self._lock:
            done = [free for free in self._frees if all(event.done() for _, event in free.users)]
            self._frees = [free for free in self._frees if free not in done]
        for free in done:
            free.buffer.free()

    def _issue(self, region: str, op: Op, call: Call) -> None:
        after = [_named(name, region, op, call) for name in op.after]
        if op.kind == "release":
            self._release(op, call, after)
            return
        name = f"{op.kind}({op.value})"
        if op.kind == "run":
            if self.runtime.recorder is None:
                for lane, event in after:
                    self._expose(lane, event)
                call.compute(region, op)
            else:
                self._run_recorded(self.runtime.recorder, region, op, call, after)
            made: LaneEvent = (op.lane, _Done())
        else:
            made = (op.lane, self._submit(region, op, call, [event for _, event in after]))
        call.events[name] = call.events[f"{name}@{region}"] = made

    def _issue_recorded(self, recorder: Recorder) -> Callable[[str, Op, Call], None]:
        recorder.regions_begin()

        def issue(region: str, op: Op, call: Call) -> None:
            self._issue(region, op, call)
            recorder.sample(self.runtime.arenas, call.outside())

        return issue

    def _run_recorded(self, recorder: Recorder, region: str, op: Op, call: Call, after: Sequence[LaneEvent]) -> None:
        for (lane, event), cause in zip(after, op.after, strict=True):
            self._expose(lane, event, cause=cause if "@" in cause else f"{cause}@{region}")
        with recorder.run(f"{op.kind}({op.value})@{region}", Origin(call.schedule.name, region, op)):
            call.compute(region, op)

    def _submit(self, region: str, op: Op, call: Call, after: list[Event]) -> Event:
        lane = self.runtime.lane(op.lane)
        moved = transfer(op, call, self.runtime)
        arriving = self._arriving(op, moved, call)
        if arriving is not None:
            event = arriving
        else:
            if moved.segment is not None:
                after = after + self._earlier(moved.segment, op.kind)
            work = replace(moved.work, label=f"{op.kind}({op.value})@{region}")
            if self.runtime.recorder is None:
                event = lane.submit(work, after)
            else:
                origin = Origin(call.schedule.name, region, op)
                event = self.runtime.recorder.submit(lane, work, after, origin)
        for place in moved.uses:
            if call.held(place) is not None:
                call.pins.setdefault(place, []).append((op.lane, event))
        if moved.segment is not None and arriving is None:
            self._note(moved.segment, op, event, call)
        return event

    def _arriving(self, op: Op, moved: Transfer, call: Call) -> Event | None:
        buffer = call.held(moved.uses[0]) if op.kind == "read" else None
        return call.arriving(op.value, buffer) if buffer is not None else None

    def _release(self, op: Op, call: Call, after: Sequence[LaneEvent]) -> None:
        buffer, pins = call.drop(Place(op.value, op.form, op.src))
        if buffer is None:
            call.release(op.value)
            return
        users = [(lane, event) for lane, event in (*after, *pins) if not event.done()]
        if not users:
            buffer.free()
            return
        with self._lock:
            self._frees.append(_Free(self.runtime.arena(op.src), buffer, users))
        if call.lag is not None:
            self._catch_up(call.lag)

    def _catch_up(self, lag: int) -> None:
        """Wait until at most `lag` bytes are released but still in use: writes may trail, but not without bound."""
        while True:
            self.reap()
            with self._lock:
                if sum(free.buffer.nbytes for free in self._frees) <= lag:
                    return
                oldest = self._frees[0]
            for lane, event in oldest.users:
                self._expose(lane, event, "lag")

    def drain(self, lane: str, event: Event, cause: str) -> BaseException | None:
        """Wait for what a call still has under way when it ends; gives back what was raised."""
        recorder = self.runtime.recorder
        return settle(event) if recorder is None or event.done() else recorder.drain(lane, event, cause)

    def _expose(self, lane: str, event: Event, why: str = "use", cause: str = "") -> None:
        """Wait, and book the time on the lane. But for "use" an error is left to the call the event belongs to."""
        waits = not event.done()
        if not waits and why != "use":
            return
        start = self.runtime.clock()
        try:
            if why == "use":
                event.wait()
            elif (error := settle(event)) is not None and not isinstance(error, Exception):
                raise error
        finally:
            with self._lock:
                self._exposed[lane] += self.runtime.clock() - start
            if waits and self.runtime.recorder is not None:
                self.runtime.recorder.waited(lane, cause, why, start)

    def _earlier(self, segment: Stored, kind: str) -> list[Event]:
        """What a transfer of the segment must not overtake."""
        with self._lock:
            last = self._last_write.get(segment)
            reads = self._reads_since.get(segment, []) if kind == "write" else []
            return [event for event in (*([last] if last is not None else []), *reads) if not event.done()]

    def _note(self, segment: Stored, op: Op, event: Event, call: Call) -> None:
        kind = call.schedule.value(op.value).kind
        with self._lock:
            if op.kind == "write":
                self._written[op.dst, kind] += segment.nbytes
                self._last_write[segment] = event
                self._reads_since.pop(segment, None)
            else:
                self._read[op.src, kind] += segment.nbytes
                reads = [read for read in self._reads_since.get(segment, []) if not read.done()]
                self._reads_since[segment] = [*reads, event]


def _named(name: str, region: str, op: Op, call: Call) -> LaneEvent:
    """The event `kind(value)@region`; without a region, the one of this region or else the latest of that name."""
    found = call.events.get(f"{name}@{region}") or call.events.get(name)
    if found is None:
        raise LookupError(f"{region}: {op.kind}({op.value}) waits for {name}, which this call has not issued")
    return found
