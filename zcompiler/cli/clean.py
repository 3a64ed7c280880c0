"""`zinf clean`: what killed runs have left, which is little: data files have no names and vanish with their process."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from runtime_ext.nvme import Swept, sweep
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import calibrated_file
from zcompiler.options import parse_options

_UNFINISHED = re.compile(r"\.zinf-[a-z0-9_]{8}")  # a machine file on its way


def clean(*, nvme: Sequence[str], dry_run: bool, json_wanted: bool, console: Console) -> None:
    """Remove leftovers in the folders `nvme`, zinf's default if there are none, and in the folder of the machine file,
    and print them.

    OptionError for a path that is none, ZinfError for a folder that was named and is not there, OSError for one that
    cannot be read or changed.
    """
    options = parse_options({"memory": 1} | ({"nvme": list(nvme)} if nvme else {}), environ=os.environ)
    swept = []
    for folder in options.nvme:
        if not folder.is_dir():
            if not options.nvme_is_ours:
                raise ZinfError(f"{folder} is not a folder: name the one that runs use with --nvme PATH")
            continue
        swept.append(sweep(folder, remove=not dry_run))
    settings = calibrated_file(os.environ).parent
    if settings.is_dir():
        swept.append(sweep(settings, _UNFINISHED, only_empty=False, remove=not dry_run))
    left = [file for found in swept for file in found.left]
    in_use = [file for found in swept for file in found.in_use]
    folders = [*options.nvme, settings]
    if json_wanted:
        found = {"folders": folders, "left": left, "in_use": in_use, "removed": not dry_run}
        console.print(json.dumps(found, indent=1, default=str), markup=False, highlight=False, soft_wrap=True)
        return
    _print(Swept(tuple(left), tuple(in_use)), folders, dry_run, console)


def _print(swept: Swept, folders: Sequence[Path], dry_run: bool, console: Console) -> None:
    lines = [f"{'would remove' if dry_run else 'removed'} {file}" for file in swept.left]
    lines += [f"in use by a running process: {file}" for file in swept.in_use]
    if not swept.left:
        where = " and ".join(map(str, folders))
        lines.append(f"nothing to remove in {where}: the files of a run have no names and vanish with it")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
