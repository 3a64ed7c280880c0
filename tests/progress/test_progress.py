"""A bar is shown for long work on a terminal, nowhere else, and is gone however the work ends."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import zcompiler
import zcompiler.progress as module
from tests.training.pair import pair
from zcompiler.progress import DELAY, INTERVAL, progress

HIDE, SHOW, ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A console that remembers, and a clock that goes when it is told to."""

    def __init__(self) -> None:
        self.file, self.clock = io.StringIO(), Clock()
        self.console = Console(file=self.file, force_terminal=True, width=80)

    def bar(self, total: int = 100, **environ: str) -> Any:
        return progress("moving", total, console=self.console, environ=environ, clock=self.clock)

    @property
    def shown(self) -> str:
        return self.file.getvalue()


def test_work_that_is_soon_done_shows_nothing() -> None:
    terminal = Terminal()
    with terminal.bar() as advance:
        for _ in range(10):
            terminal.clock.now += DELAY / 11
            advance(10)
    assert terminal.shown == ""


def test_long_work_shows_how_much_is_done_and_leaves_nothing() -> None:
    terminal, threads = Terminal(), threading.active_count()
    with terminal.bar() as advance:
        terminal.clock.now += DELAY
        advance(25)
        assert "zinf: moving" in terminal.shown and "25%" in terminal.shown
        assert threading.active_count() == threads
        terminal.clock.now += INTERVAL
        advance(50)
        assert "75%" in terminal.shown
    assert terminal.shown.count(HIDE) == terminal.shown.count(SHOW) == 1
    assert terminal.shown.endswith(ERASE)


def test_it_is_drawn_at_intervals_only() -> None:
    terminal = Terminal()
    with terminal.bar(1000) as advance:
        terminal.clock.now += DELAY
        advance(1)
        before = terminal.shown
        for _ in range(500):
            advance(1)
        assert terminal.shown == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_or_ctrl_c_passes_and_the_line_is_gone(error: type[BaseException]) -> None:
    terminal = Terminal()
    with pytest.raises(error), terminal.bar() as advance:
        terminal.clock.now += DELAY
        advance(1)
        raise error
    assert terminal.shown.endswith(ERASE) and SHOW in terminal.shown


@pytest.mark.parametrize("environ", [{"CI": "1"}, {"CI": "true"}, {"ZINF_PROGRESS": "0"}, {"TERM": "dumb"}])
def test_the_environment_may_speak_against_it(environ: dict[str, str]) -> None:
    terminal = Terminal()
    with terminal.bar(**environ) as advance:
        terminal.clock.now += DELAY
        advance(1)
    assert terminal.shown == ""


@pytest.mark.parametrize("environ", [{"CI": "false"}, {"CI": ""}, {"ZINF_PROGRESS": "1"}])
def test_other_values_do_not(environ: dict[str, str]) -> None:
    terminal = Terminal()
    with terminal.bar(**environ) as advance:
        terminal.clock.now += DELAY
        advance(1)
    assert "zinf: moving" in terminal.shown


def test_nothing_where_there_is_no_terminal_or_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with terminal.bar(0) as advance:
        terminal.clock.now += DELAY
        advance(1)
    clock, plain = Clock(), Console(file=io.StringIO(), force_terminal=False)
    stderr = io.StringIO()  # as in a notebook: it can be written to, and is no terminal
    for console, stream in ((plain, stderr), (None, stderr), (None, None)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("moving", 2, console=console, environ={}, clock=clock) as advance:
            clock.now += DELAY
            advance(1)
    assert (terminal.shown, plain.file.getvalue(), stderr.getvalue()) == ("", "", "")  # type: ignore[attr-defined]


def test_without_a_console_it_is_the_terminal_behind_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stderr = Clock(), io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("moving", 2, environ={}, clock=clock) as advance:
        clock.now += DELAY
        advance(1)
        assert sys.stderr is stderr  # what others print meanwhile goes where it went
    assert "zinf: moving" in stderr.getvalue()


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_stop_the_work() -> None:
    clock, console = Clock(), Console(file=Gone(), force_terminal=True)
    with progress("moving", 3, console=console, environ={}, clock=clock) as advance:
        for _ in range(3):
            clock.now += DELAY
            advance(1)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What bars a terminal would show of a model, however quick it is."""
    seen: list[str] = []

    class Bar:
        def __init__(self, what: str, total: int, *others: object) -> None:
            self._what, self._left = what, total

        def advance(self, done: int) -> None:
            self._left -= done

        def close(self) -> None:
            seen.append(f"{self._what}: {self._left} left")

    monkeypatch.setattr(module, "_wanted", lambda *arguments: True)
    monkeypatch.setattr(module, "_Bar", Bar)
    yield seen
    torch._dynamo.reset()


def test_the_first_step_and_restore_have_bars_and_later_steps_none(disk: Path, told: list[str]) -> None:
    made = pair(disk, place={"params": "nvme", "optimizer": "nvme"}, steps=1)
    forward, moving, backward = told
    assert forward == "compiling forward of graph0: 0 left" and backward == "compiling backward of graph0: 0 left"
    assert moving == "moving parameters: 0 left"
    told.clear()
    made.goes_on()
    assert told == []
    zcompiler.restore(made.ours.module)
    assert told == ["restoring: 0 left"]
    made.assert_equal_weights()
