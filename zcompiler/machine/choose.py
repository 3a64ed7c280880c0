"""Which machine to plan for: the one a user names, else the calibrated one, else a shipped one at this one's size."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from zcompiler.machine.file import parse_machine, read_machine
from zcompiler.machine.machine import Machine, Memory

OTHERWISE = "laptop"


@dataclass(frozen=True, slots=True)
class Chosen:
    """`why` says in a few words, without figures or paths, where the machine comes from."""

    machine: Machine
    why: str

    def __str__(self) -> str:
        return f"{self.machine.name} ({self.why})"


def choose_machine(named: str | Path | None, environ: Mapping[str, str], nvme: Path) -> Chosen:
    """The machine that the option `machine` names: a shipped one by its name, or a file by its path.

    Without it, the file that `zinf calibrate` has written; without that, the shipped `laptop` with the memory of this
    machine and the free space of the disk under `nvme`. MachineError when a file is missing or wrong.
    """
    if isinstance(named, Path):
        return Chosen(read_machine(named), "a file named by the option machine")
    if named is not None:
        return Chosen(shipped_machine(named), "shipped with zinf")
    calibrated = calibrated_file(environ)
    if calibrated.exists():
        return Chosen(read_machine(calibrated), "measured by zinf calibrate")
    machine = replace(shipped_machine(OTHERWISE), tiers=tiers_here(nvme))
    return Chosen(machine, "shipped with zinf, at the size of this machine; zinf calibrate measures it")


def shipped_machine(name: str) -> Machine:
    """A description that comes with zinf. FileNotFoundError for a name that is not one of `options.MACHINES`."""
    file = files("zcompiler.machine") / "shipped" / f"{name}.toml"
    return parse_machine(file.read_text(encoding="utf-8"), f"shipped machine {name}")


def calibrated_file(environ: Mapping[str, str]) -> Path:
    """Where `zinf calibrate` puts what it has measured: zinf/machine.toml in the user's configuration folder."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the XDG base directory specification has relative paths ignored
        folder = str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(folder) / "zinf" / "machine.toml"


def tiers_here(nvme: Path) -> tuple[Memory, ...]:
    """All memory of this machine, and the free space of the disk that holds `nvme` or would hold it once made, both in
    whole mebibytes."""
    while not os.path.exists(nvme):  # which, unlike a Path, has an answer for every path: the store refuses bad ones
        nvme = nvme.parent
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = shutil.disk_usage(nvme).free
    return Memory("host", memory >> 20 << 20), Memory("nvme", free >> 20 << 20)
