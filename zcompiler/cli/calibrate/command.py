"""`zinf calibrate` from beginning to end: check, measure, write, show."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from zcompiler.cli.calibrate.compute import compute_samples
from zcompiler.cli.calibrate.disk import Stored, disk_samples
from zcompiler.cli.calibrate.found import machine_of
from zcompiler.cli.calibrate.report import machine_table
from zcompiler.cli.calibrate.samples import Effort, Sample, medians
from zcompiler.cli.folders import no_folders_left
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import calibrated_file, tiers_here
from zcompiler.machine.file import write_machine
from zcompiler.machine.parts import cpu_only
from zcompiler.options import parse_options
from zcompiler.progress import progress


def calibrate(
    *, nvme: str | None, output: Path | None, as_json: bool, console: Console, errors: Console, effort: Effort
) -> None:
    """Measure this machine and put the file in place; `console` shows what was found, `errors` progress and notes.

    A disk that a user named must do: StoreError. Of zinf's own cache folder it is noted that it cannot be measured, and
    described figures stand in. ZinfError when the file cannot be written, before anything is measured. Everything else
    that this makes is gone when it returns or is interrupted.
    """
    began = time.perf_counter()
    path = output if output is not None else calibrated_file(os.environ)
    _check_writable(path)
    options = parse_options({"memory": 1} | ({"nvme": nvme} if nvme is not None else {}), environ=os.environ)
    notes = _busy()
    with ExitStack() as made:
        made.enter_context(no_folders_left(options.nvme[0]))
        tiers = tiers_here(options.nvme[0])
        samples: list[Sample] = []
        try:
            samples += made.enter_context(_disk(options.nvme_folders(), effort, notes))
        except OSError as error:
            if not options.nvme_is_ours:
                raise
            notes.append(
                f"the disk was not measured, and described figures stand in: {error}; or name a folder on another "
                "disk: zinf calibrate --nvme DIR"
            )
        samples += compute_samples(effort)
        with progress("measuring this machine", effort.rounds * len(samples), console=errors) as advance:
            figures = medians(samples, effort.rounds, lambda key: advance(1))
    machine = machine_of(figures, tiers)
    write_machine(machine, path, _comment(options.nvme, notes))
    for note in notes:
        errors.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        found = {"file": str(path), "seconds": round(time.perf_counter() - began, 3), "notes": notes}
        console.print(json.dumps(found | {"machine": asdict(machine)}), markup=False, highlight=False, soft_wrap=True)
        return
    if console.is_terminal:
        console.print(machine_table(machine))
    console.print(f"written to {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _disk(folders: Sequence[Path], effort: Effort, notes: list[str]) -> Iterator[list[Sample]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it is among the fallbacks
        threads = cpu_only(0).threads["nvme_read"]
        stored = Stored(folders, effort.transfer, threads, effort.piece)
    try:
        for fallback in stored.store.fallbacks:
            notes.append(f"{fallback}; that is what was measured: for a faster disk name a folder with --nvme DIR")
        yield disk_samples(stored, effort)
    finally:
        stored.close()


def _busy() -> list[str]:
    """A note, if other programs have kept more than a quarter of the processors busy in the last minute."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load <= processors / 4:
        return []
    return [
        f"other programs kept {load:.1f} of {processors} processors busy when measuring began, so figures may be too "
        "low: run it again when the machine is quiet"
    ]


def _check_writable(path: Path) -> None:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "is a folder" if path.is_dir() else f"cannot be made in {folder}"
        raise ZinfError(f"{path} {what}: name another file with --output FILE")


def _comment(folders: Sequence[Path], notes: Sequence[str]) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    threads = torch.get_num_threads()
    first = f"Measured by zinf calibrate on {now}, torch {torch.__version__} with {threads} threads."
    return "\n".join((first, f"Disk: {', '.join(map(str, folders))}", *notes))
