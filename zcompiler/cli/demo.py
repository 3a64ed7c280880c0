"""`zinf demo`: SmolLM2 trained a few steps by plain PyTorch and by zinf under a memory limit, side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from zcompiler.cli.demo_report import Side, as_json, gib, report
from zcompiler.errors import ZinfError
from zcompiler.options import parse_options

SHOWN = 15  # lines of a failed process's stderr
GRACE = 10.0  # seconds in which an interrupted process may remove its files


def demo(
    *,
    steps: int,
    tokens: int,
    memory: str,
    nvme: Sequence[str],
    inductor: bool,
    json_wanted: bool,
    threads: int,
    console: Console,
) -> None:
    """Run each side in a process of its own, one after the other, and print the tables, and JSON to stdout if wanted.

    `memory` and `nvme` are zinf's options of that name; `threads` is for torch, 0 for its default. Raises OptionError
    for a bad option before anything runs, ZinfError when a side fails.
    """
    raw: dict[str, object] = {"memory": memory}
    if nvme:
        raw["nvme"] = list(nvme)
    options = parse_options(raw, environ=os.environ)
    settings = {"steps": steps, "tokens": tokens, "memory": memory, "nvme": list(nvme), "threads": threads}
    console.print(f"SmolLM2-135M-Instruct, fp32: {steps} steps of AdamW, {tokens} tokens each; zinf may take {memory}")
    sides = []
    for name in ("plain", "zinf", "inductor") if inductor else ("plain", "zinf"):
        sides.append(watch(name, child_command(name, settings), steps, console))
    parameters = sides[0].parameters
    console.print(
        f"{parameters / 1e6:.1f} M parameters: weights, gradients and AdamW's states take {gib(16 * parameters)}\n"
    )
    report(console, sides, options.memory)
    if json_wanted:
        print(json.dumps(as_json(sides, settings), indent=1))


def child_command(name: str, settings: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "zcompiler.cli.demo_child", json.dumps({"side": name, **settings})]


def watch(name: str, command: Sequence[str], steps: int, console: Console) -> Side:
    """Run one side and return what it said, with a progress bar while it runs.

    Raises ZinfError with the last lines of its stderr when it fails. However this ends, the process has ended too.
    """
    side = Side(name)
    name_column = TextColumn("{task.description:>20}")
    columns = (SpinnerColumn(), name_column, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, tempfile.TemporaryFile() as errors:
        task = progress.add_task(f"{name}: loading", total=steps)

        def hear(line: dict[str, Any]) -> None:
            side.hear(line)
            doing = "done" if side.done else "first step" if not side.losses else "training"
            progress.update(task, completed=len(side.losses), description=f"{name}: {doing}")

        status = _run(command, errors, hear)
        if status != 0 or not side.done:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").splitlines()[-SHOWN:]
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            said = ":" + "".join(f"\n  {line}" for line in tail) if tail else " and said nothing"
            raise ZinfError(f"the {name} side {how} after {len(side.losses)} of {steps} steps{said}")
    return side


def _run(command: Sequence[str], errors: IO[bytes], hear: Callable[[dict[str, Any]], None]) -> int:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # A session of its own: Ctrl-C comes to this process alone, which then ends the child and the child's own children.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **offline},
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line.endswith("\n"):  # a killed child may leave half a line
                hear(json.loads(line))
        return child.wait()
    finally:
        _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # nobody is left in its session
        return
