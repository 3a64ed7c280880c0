"""The parent's half of a benchmark: processes that stay alive and take turns, each doing what it is asked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
GRACE = 10.0  # seconds in which a child may end by itself
SHOWN = 15  # lines of a failed child's stderr

# In a shell, so that the process is in the group before it holds anything.
_ENTER = 'echo $$ > "$0" && exec "$@"'


def reason(last_words: str) -> str:
    """The line that names the error, among what a process said last; "" where it said nothing."""
    lines = [line.strip() for line in last_words.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|DoesNotFit|Unavailable)\b", line)]
    return (named or lines or [""])[-1]


class Ended(RuntimeError):
    """A child ended before it had answered. `status` as subprocess gives it: negative for a signal."""

    def __init__(self, name: str, status: int, tail: str) -> None:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        super().__init__(f"the {name} process {how}" + (f":\n{tail}" if tail else " and said nothing"))
        self.status = status


class Child:
    """`python -m module settings` as a process of its own, in the cgroup directory `group` from the start.

    `python` is the interpreter, another one than this for a module that wants another virtual environment.

    A context manager: however the block is left, the process and its own children have ended afterwards. Ended when it
    does not get ready.
    """

    def __init__(
        self,
        name: str,
        module: str,
        settings: Mapping[str, Any],
        *,
        group: Path | None = None,
        python: Path = Path(sys.executable),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        command = [str(python), "-m", module, json.dumps(settings)]
        if group is not None:
            command = ["/bin/sh", "-c", _ENTER, str(group / "cgroup.procs"), *command]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        # A session of its own: Ctrl-C comes to this process alone, which then ends the child and the child's children.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **offline, "PYTHONPATH": path, **(environ or {})},
            start_new_session=True,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to a command. Ended when the process ends instead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):  # a killed child may leave half a line
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> Ended:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()[-SHOWN:]
        return Ended(self.name, status, "\n".join(f"  {line}" for line in lines))

    def close(self) -> None:
        """End the process. It ends by itself when its stdin does, unless it is in the middle of something."""
        process = self._process
        try:
            if process.stdin is not None and not process.stdin.closed:
                with suppress(BrokenPipeError):
                    process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        finally:
            with suppress(ProcessLookupError):  # nobody is left in its session
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
