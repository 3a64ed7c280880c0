"""What the benchmarks share around their measuring: JSON lines with where they come from, settings, a clean end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from bench.cgroup import Unavailable
from bench.turns import ROOT, Ended
from zcompiler.errors import ZinfError
from zcompiler.options import parse_options


def record(bench: str, **fields: Any) -> None:
    """Print one measurement as a JSON line."""
    print(json.dumps({"bench": bench, **fields, **_origin()}), flush=True)


@cache
def _origin() -> dict[str, Any]:
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if commit.returncode:
        name = "unknown"
    else:
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "zcompiler", "runtime_ext", "bench"])
        name = commit.stdout.strip() + ("+changed" if changed.returncode else "")
    return {"torch": torch.__version__, "commit": name, **machine(), "spec": _spec(sys.argv)}


def machine() -> dict[str, Any]:
    """The processor, how many of its cores this process may use, and bytes of memory."""
    known = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": known[0] if known else "unknown", "cores": len(os.sched_getaffinity(0)), "memory_bytes": nbytes}


def _spec(argv: list[str]) -> str:
    """What was asked for, without the folder on the disk, which says nothing to others."""
    kept: list[str] = []
    given = iter(argv[1:])
    for word in given:
        if word == "--nvme":
            next(given, None)
        elif not word.startswith("--nvme="):
            kept.append(word)
    return " ".join(kept)


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if Path(file).exists() else []


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that all of them take."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--nvme", type=Path, help="a directory on the disk to use (default: zinf's own)")
    made.add_argument("--tokens", type=int, default=512, help="tokens a step")
    made.add_argument("--threads", type=int, default=0, help="for torch in each process; 0 leaves it to torch")
    return made


def disk_folder(nvme: Path | None) -> str:
    """The directory on the disk; zinf's default, created if missing, where none was named."""
    return str(nvme or parse_options(None, environ=os.environ).nvme_folders()[0])


def entry(main: Callable[[], bool]) -> None:
    """Run a benchmark; status 0 if what it must show holds, 1 if not, 2 if it could not be run.

    SIGTERM unwinds like Ctrl-C does, so that processes, files and cgroups go in both cases.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)
    try:
        sys.exit(0 if main() else 1)
    except (Unavailable, Ended, ZinfError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
