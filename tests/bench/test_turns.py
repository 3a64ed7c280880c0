from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.turns import Child, Ended


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module for a child, to be written by the test."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "told.py"


def told(script: Path, commands: str, before: str = "") -> Child:
    script.write_text(
        f"import os, signal, subprocess\nfrom bench.serve import serve\n{before}\nserve(lambda s: {commands})"
    )
    return Child("told", "told", {"a": 1})


def test_a_child_answers_in_json_whatever_its_libraries_print(script: Path) -> None:
    with told(script, "{'settings': lambda: print('noise') or s}") as child:
        assert child.ask("settings") == {"a": 1}


def test_a_kill_is_told_by_its_signal(script: Path) -> None:
    with told(script, "{'die': lambda: os.kill(os.getpid(), signal.SIGKILL)}") as child:
        with pytest.raises(Ended, match="told process was killed by signal 9 and said nothing") as ended:
            child.ask("die")
        assert ended.value.status == -signal.SIGKILL


def test_a_crash_shows_what_the_child_said_last(script: Path) -> None:
    with told(script, "{'crash': lambda: 1 // 0}") as child, pytest.raises(Ended, match="ZeroDivisionError"):
        child.ask("crash")


def test_a_child_that_does_not_get_ready_is_an_error(script: Path) -> None:
    with pytest.raises(Ended, match="ended with status 3"):
        told(script, "{}", before="raise SystemExit(3)")


def test_the_children_of_a_child_end_with_it(script: Path, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    start = f"subprocess.Popen(['sleep', '1000'], stdout=open({str(held)!r}, 'w')).pid"
    with pytest.raises(KeyboardInterrupt), told(script, f"{{'start': lambda: {start}}}") as child:
        assert child.ask("start") > 0  # type: ignore[operator]
        raise KeyboardInterrupt
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # nobody holds the other end any more
    os.close(reader)
