"""A bar on the terminal for work that takes long; nothing where nobody looks at one, or where the work is soon done.

The bar is drawn by whoever does the work, so there is no thread, and it is gone when the work ends, however it does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

VARIABLE = "ZINF_PROGRESS"
DELAY = 1.0  # seconds before a bar is shown
INTERVAL = 0.1  # and between two looks of it

Advance = Callable[[int], None]


@contextmanager
def progress(
    what: str,
    total: int,
    *,
    console: Console | None = None,
    environ: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """Gives a function to tell how much more of `total` is done. Shows a bar on stderr, or `console`, if that is a
    terminal, the environment does not speak against it (CI, ZINF_PROGRESS=0), and the work takes longer than DELAY.
    """
    if total <= 0 or not _wanted(console, environ):
        yield _nothing
        return
    bar = _Bar(what, total, console, clock)
    try:
        yield bar.advance
    finally:
        bar.close()


def _nothing(done: int) -> None:
    return


def _wanted(console: Console | None, environ: Mapping[str, str]) -> bool:
    if environ.get(VARIABLE) == "0" or environ.get("CI", "").lower() not in ("", "0", "false"):
        return False
    if environ.get("TERM") == "dumb":
        return False
    if console is not None:
        return console.is_terminal
    return sys.stderr is not None and sys.stderr.isatty()  # None where a process has no console at all


class _Bar:
    def __init__(self, what: str, total: int, console: Console | None, clock: Callable[[], float]) -> None:
        self._what, self._total, self._console, self._clock = what, total, console, clock
        self._done = 0
        self._next = clock() + DELAY
        self._shown: Progress | None = None

    def advance(self, done: int) -> None:
        self._done += done
        now = self._clock()
        if now < self._next:
            return
        self._next = now + INTERVAL
        try:
            self._draw()
        except OSError:  # the terminal is gone, which is no reason to stop the work
            self._next = float("inf")

    def close(self) -> None:
        if self._shown is not None:
            try:
                self._shown.stop()
            except OSError:
                return

    def _draw(self) -> None:
        if self._shown is None:
            self._shown = self._made()
            self._shown.start()
        self._shown.update(self._shown.task_ids[0], completed=self._done)
        self._shown.refresh()

    def _made(self) -> Progress:
        # Late, because most work is done before anything is shown.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        shown = Progress(
            *columns,
            console=self._console or Console(stderr=True, force_jupyter=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_time=self._clock,
        )
        shown.add_task(f"zinf: {self._what}", total=self._total)
        return shown
