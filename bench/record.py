"""What the benchmarks share around their measuring: JSON lines with where they come from, settings, a clean end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
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
    print(json.dumps({"bench": bench, **fields, **provenance()}), flush=True)


def verdict(
    bench: str,
    question: str,
    measured: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    also: bool = True,
) -> bool:
    """Record a ratio that answers a question, for `make bench`; whether it is at least and at most what it may be.

    `also`: whether what else must hold for this answer does. With neither bound the ratio is only told.
    """
    above, below = at_least is None or measured >= at_least, at_most is None or measured <= at_most
    bounds = {"at_least": at_least, "at_most": at_most, "judged": at_least is not None or at_most is not None}
    holds = above and below and also
    record(bench, question=question, measured=measured, **bounds, holds=holds)
    return holds


@cache
def provenance() -> dict[str, Any]:
    """Where a line comes from: the code, the machine, the day (UTC), and what was asked for."""
    day = datetime.now(UTC).date().isoformat()
    return {"torch": torch.__version__, "commit": commit(), "date": day, **machine(), "spec": _spec(sys.argv)}


def commit() -> str:
    """That of the working tree, `+changed` behind it where the code is not that commit's."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "zcompiler", "runtime_ext", "bench"])
    return head.stdout.strip() + ("+changed" if changed.returncode else "")


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
    except Exception:  # Python's own status would be 1: that something does not hold
        traceback.print_exc()
        sys.exit(2)
