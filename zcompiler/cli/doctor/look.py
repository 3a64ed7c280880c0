"""All probes, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from zcompiler.cli.doctor.found import Disk, Found
from zcompiler.cli.doctor.probes.disk import look_at_disk
from zcompiler.cli.doctor.probes.software import look_at_compiler, look_at_cuda, look_at_torch
from zcompiler.cli.doctor.probes.system import (
    look_at_cores,
    look_at_io_uring,
    look_at_memory,
    look_at_open_files,
)
from zcompiler.cli.folders import no_folders_left
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import calibrated_file, choose_machine
from zcompiler.options import OptionError, Options, parse_options

PROBES = 5


def look(nvme: Sequence[str], environ: Mapping[str, str], advance: Callable[[], None]) -> Found:
    """Everything about this machine and the folders `nvme`, zinf's default if there are none. `advance` is called
    PROBES times as the work goes on. OptionError for a path that is none. Nothing is left behind."""
    options = parse_options({"memory": 1} | ({"nvme": list(nvme)} if nvme else {}), environ=environ)
    torch = look_at_torch()
    advance()
    compiler = look_at_compiler()
    advance()
    cuda = look_at_cuda()
    advance()
    memory = look_at_memory()
    advance()
    machine, machine_error, whole = "", "", True
    with no_folders_left(options.nvme[0]):
        disks = _disks(options)
        try:
            chosen = choose_machine(None, environ, options.nvme[0])
            machine, whole = str(chosen), bool(chosen.machine.attention)
        except (ZinfError, OSError) as error:
            machine_error = str(error)
    advance()
    return Found(
        sys.version_info[:3],
        torch,
        compiler,
        cuda,
        look_at_cores(),
        memory,
        look_at_open_files(),
        look_at_io_uring(),
        disks,
        machine,
        machine_error,
        calibrated_file(environ).exists(),
        whole,
    )


def _disks(options: Options) -> tuple[Disk, ...]:
    try:
        return tuple(look_at_disk(path) for path in options.nvme_folders())
    except OptionError as error:
        return (Disk(options.nvme[0], str(error)),)
