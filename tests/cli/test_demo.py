from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console

from zcompiler.cli.app import app
from zcompiler.cli.demo import SHOWN, child_command, watch
from zcompiler.cli.demo_child import token_batches
from zcompiler.cli.demo_report import Side
from zcompiler.errors import ZinfError

LINES = r"""
print('{"base": 10, "parameters": 3}', flush=True)
print('{"step": 0, "loss": 2.5, "seconds": 0.1}', flush=True)
"""
DONE = r"""print('{"done": {"peak": 30, "steady": true, "before": null, "after": null}}')"""


def watched(code: str) -> Side:
    return watch("plain", [sys.executable, "-c", code], 3, Console(file=io.StringIO()))


def failure(code: str) -> str:
    with pytest.raises(ZinfError) as caught:
        watched(code)
    return str(caught.value)


def test_a_side_is_what_its_process_said() -> None:
    assert watched(LINES + DONE) == Side("plain", 10, 3, [2.5], [0.1], 30, done=True)


def test_a_crash_shows_the_last_lines_of_its_stderr() -> None:
    message = failure(LINES + "import sys\nfor i in range(99): print(f'line {i};', file=sys.stderr)\nsys.exit(3)")
    assert message.startswith("the plain side ended with status 3 after 1 of 3 steps:\n")
    assert "line 98;" in message and message.count("line ") == SHOWN


def test_a_kill_is_told_from_an_exit_and_half_a_line_is_no_line() -> None:
    code = f"""print('{{"ste', end='', flush=True); import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"""
    assert failure(code) == "the plain side was killed by signal 9 after 0 of 3 steps and said nothing"


def test_ending_early_is_a_failure_too() -> None:
    assert "ended with status 0 after 1 of 3 steps" in failure(LINES)


@pytest.mark.full
def test_an_interrupt_ends_the_process_and_its_own_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    code = f"""
import os, signal, subprocess, sys
held = open({str(held)!r}, "wb")  # both processes hold it: the reader sees its end when both have ended
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], stdout=held)
print('{{"base": %d, "parameters": 3}}' % os.getpid(), flush=True)
signal.pause()
"""
    pids = []

    def interrupt(self: Side, line: dict[str, Any]) -> None:
        pids.append(line["base"])
        raise KeyboardInterrupt

    monkeypatch.setattr(Side, "hear", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watched(code)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_json_stands_alone_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def seen(name: str, *_: object) -> Side:
        return Side(name, 10, 3, [2.5, 2.25, 2.0], [0.1] * 3, 30, done=True)

    monkeypatch.setattr("zcompiler.cli.demo.watch", seen)
    main = typer.main.get_command(app)
    main.main(["demo", "--steps", "3", "--json"], standalone_mode=False)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [side["name"] for side in found["sides"]] == ["plain", "zinf"] and found["settings"]["steps"] == 3
    assert "median step" in err


def test_batches_follow_one_another_and_start_again() -> None:
    def tokenizer(text: str, **_: object) -> dict[str, torch.Tensor]:
        assert len(text) > 100_000
        return {"input_ids": torch.arange(7)[None]}

    batches = token_batches(tokenizer, 3)
    assert [next(batches).tolist() for _ in range(3)] == [[[0, 1, 2]], [[3, 4, 5]], [[0, 1, 2]]]
    with pytest.raises(ZinfError, match="7 tokens; a step cannot take 8"):
        next(token_batches(tokenizer, 8))


@pytest.mark.full
def test_the_plain_side_for_real() -> None:
    settings = {"steps": 3, "tokens": 16, "memory": "1GiB", "nvme": [], "threads": 1}
    side = watch("plain", child_command("plain", settings), 3, Console(file=io.StringIO()))
    assert side.parameters == 134_515_008
    assert len(side.losses) == 3 and all(0 < loss < 12 for loss in side.losses)
    assert side.memory > 16 * side.parameters
