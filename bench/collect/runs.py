"""Running benchmarks, and their lines: a file for each, which is there once it has ended."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bench.record import commit, provenance
from bench.turns import ROOT, reason

# In the order of the table. Fewer rounds than by themselves, since all together take long; a disk that is held to a
# rate gives the same figures as any other that is faster.
RUNS: Mapping[str, tuple[str, ...]] = {
    "fits": (),
    "step": ("--rounds", "4", "--rate", "500"),
    "late": ("--pairs", "4"),
    "prefetch": ("--pairs", "4"),
    "predict": ("--rounds", "3", "--rate", "500"),
    "curve": ("--rate", "500"),
    "limits": (),
    "activations": ("--rounds", "3"),
    "tiling": (),
    "first_step": ("--pairs", "2"),
    "planning": (),
    "import_time": ("--rounds", "5"),
    "store": ("--rounds", "5"),
}
WITHOUT_DISK = ("planning", "import_time")
WIDTH = "120"  # of the tables that they print
JUDGED = (0, 1)  # statuses: all that must hold does, or not; any other: it could not be run

Line = Mapping[str, Any]


def run(name: str, results: Path, nvme: Path | None) -> None:
    """Run one and put its lines in the folder, with one behind them that says how it ended. All else that it prints is
    printed. If this is interrupted, the benchmark is too, and what the folder has of it stays as it was."""
    results.mkdir(parents=True, exist_ok=True)
    unfinished = results / f"{name}.jsonl.part"
    end = {"bench": name, **provenance(), "commit": commit(), "code": code(), "spec": " ".join(RUNS[name])}
    print(f"{spec(name)} ...", flush=True)
    with unfinished.open("w", encoding="utf-8") as lines, tempfile.TemporaryFile() as errors:
        status = _followed(_command(name, nvme), lines, errors)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if status not in JUDGED:
            print(said, file=sys.stderr)
        error = "" if status in JUDGED else reason(said) or f"status {status}, and nothing was said"
        lines.write(f"{json.dumps({**end, 'ended': status, 'error': error})}\n")
    unfinished.replace(_file(name, results))


def _command(name: str, nvme: Path | None) -> list[str]:
    disk = [] if nvme is None or name in WITHOUT_DISK else ["--nvme", str(nvme)]
    return [sys.executable, "-m", f"bench.{name}", *RUNS[name], *disk]


def _followed(command: Sequence[str], lines: IO[str], errors: IO[bytes]) -> int:
    """The status of the command, which has ended however this is left."""
    # A session of its own, so that Ctrl-C comes here alone and what it started can end in its own way.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": WIDTH},
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                if text.startswith("{"):
                    lines.write(text)
                    lines.flush()
                else:
                    print(text, end="", flush=True)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
    return process.returncode


def spec(name: str) -> str:
    """What is run, as one would type it, without the disk's folder."""
    return " ".join(("bench." + name, *RUNS[name]))


def is_done(name: str, results: Path) -> bool:
    """Whether there are lines of a run to its end, of the code as it is, with what is asked today."""
    last = next(reversed(_read(_file(name, results))), {})
    same = last.get("code") == code() and last.get("spec") == " ".join(RUNS[name])
    return same and last.get("ended") in JUDGED


def code() -> str:
    """A name for the code that is measured, with what of it is not committed yet; commits of other things keep it."""
    git, folders = ["git", "-C", str(ROOT)], ("zcompiler", "runtime_ext", "bench")
    committed = subprocess.run([*git, "rev-parse", *(f"HEAD:{folder}" for folder in folders)], capture_output=True)
    changed = subprocess.run([*git, "diff", "HEAD", "--", *folders], capture_output=True)
    return hashlib.sha256(committed.stdout + changed.stdout).hexdigest()[:16]


def read_lines(results: Path) -> dict[str, list[Line]]:
    """The lines of each benchmark that has ended, in the order of the table."""
    found = {name: _read(_file(name, results)) for name in RUNS}
    return {name: lines for name, lines in found.items() if lines}


def _file(name: str, results: Path) -> Path:
    return results / f"{name}.jsonl"


def _read(file: Path) -> list[Line]:
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
