"""Threads as a lane: work starts in order, its pieces are spread over the threads, an error reaches whoever waits."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from runtime_ext.interface import Event, Work


class HostEvent:
    """One piece of work of a HostLane, done or not."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._pid = os.getpid()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Return when the work is done. Raises the error the work raised, with the work's label in its notes."""
        if not self._done.is_set():
            if os.getpid() != self._pid:
                raise RuntimeError(f"{self.label} belongs to the parent process: a forked child cannot wait for it")
            self._done.wait()
        if self._error is not None:
            raise self._error

    def finish(self, error: BaseException | None) -> None:
        """Called once, by the lane."""
        if error is not None and self.label not in getattr(error, "__notes__", ()):
            error.add_note(self.label)
        self._error = error
        self._done.set()


@dataclass(slots=True, eq=False)
class _Job:
    work: Work
    after: tuple[Event, ...]
    event: HostEvent
    taken: int = 0
    running: int = 0
    starting: bool = False
    ready: bool = False
    error: BaseException | None = None


class HostLane:
    """An ordered queue served by `threads` daemon threads.

    Work starts in the order of `submit`, once its `after` events are done; the next may start when every piece of the
    one before was taken, so that the disk's queue stays full. When a piece fails, pieces not yet taken are skipped and
    the event raises once the running ones have ended, so no piece touches memory after its event is done.
    A forked child cannot use the lane (RuntimeError).
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"lane {name} wants at least one thread, not {threads}")
        self.name = name
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._in_progress = 0
        self._busy, self._since = 0.0, 0.0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"zinf-{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work, after: Sequence[Event] = ()) -> HostEvent:
        """Queue `work`; the event is done when all its pieces are. RuntimeError after `close` and in a forked child."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"lane {self.name}: {work.label} was submitted in a forked child, which has no lanes: "
                "use the model in the process that compiled it"
            )
        event = HostEvent(work.label)
        with self._changed:
            if self._closed:
                raise RuntimeError(f"lane {self.name} is closed: {work.label} came too late")
            self._queue.append(_Job(work, tuple(after), event))
            self._changed.notify_all()
        return event

    def busy_seconds(self) -> float:
        """Seconds in which this lane had work in progress (waiting for `after` is not work), since it was made."""
        with self._changed:
            return self._busy + (time.perf_counter() - self._since if self._in_progress else 0.0)

    def close(self) -> None:
        """Finish what was submitted, then stop. Idempotent; without effect in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        # A function of its own, so that an idle thread holds no work and with it no memory.
        taken = self._take()
        if taken is None:
            return False
        job, piece = taken
        if piece is None:
            self._start(job)
        else:
            self._run(job, piece)
        return True

    def _take(self) -> tuple[_Job, int | None] | None:
        """The head of the queue with a piece of it to run, or with None to start it; None when the lane is closed."""
        with self._changed:
            while True:
                if self._queue:
                    job = self._queue[0]
                    if job.ready:
                        job.running += 1
                        job.taken += 1
                        if job.taken == len(job.work.pieces):
                            self._queue.popleft()
                            self._changed.notify_all()
                        return job, job.taken - 1
                    if not job.starting:
                        job.starting = True
                        return job, None
                elif self._closed:
                    return None
                self._changed.wait()

    def _start(self, job: _Job) -> None:
        # One thread waits for the head; the lane is in order, so the others have nothing else to do.
        error: BaseException | None = None
        for event in job.after:
            try:
                event.wait()
            except BaseException as raised:
                error = error or raised
        with self._changed:
            if error is None and job.work.pieces:
                job.ready = True
                if self._in_progress == 0:
                    self._since = time.perf_counter()
                self._in_progress += 1
            else:
                self._queue.popleft()
                job.event.finish(error)
            self._changed.notify_all()

    def _run(self, job: _Job, piece: int) -> None:
        error: BaseException | None = None
        try:
            job.work.pieces[piece]()
        except BaseException as raised:
            error = raised
        with self._changed:
            job.running -= 1
            if error is not None:
                job.error = job.error or error
                if job.taken < len(job.work.pieces):
                    job.taken = len(job.work.pieces)
                    self._queue.popleft()
                    self._changed.notify_all()
            if job.running == 0 and job.taken == len(job.work.pieces):
                self._in_progress -= 1
                if self._in_progress == 0:
                    self._busy += time.perf_counter() - self._since
                job.event.finish(job.error)
