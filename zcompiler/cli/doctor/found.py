"""What the probes have found out about a machine: plain data, sizes in bytes, errors in words ("" for none)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zcompiler.free_memory import MemoryLimit

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Torch:
    """`cuda` is the CUDA version that it was built with, `threads` are those it computes with."""

    version: str = ""
    error: str = ""
    cuda: str = ""
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Compiler:
    """The C++ compiler that Inductor calls; `missing` says why there is none, `failed` what a trial ended with."""

    path: str = ""
    missing: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Cuda:
    driver: str = ""  # the CUDA version that the driver supports
    core: bool = False  # whether cuda.core, of cuda-python, can be imported


@dataclass(frozen=True, slots=True)
class Memory:
    """`huge_pages`: always, madvise or never. `allocator`: the C library, or what was loaded in place of its malloc."""

    total: int
    free: int
    error: str = ""
    limits: tuple[MemoryLimit, ...] = ()
    huge_pages: str = ""
    allocator: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder for the store. `refused`: why it cannot be one at all. `alignment`: the smallest direct transfer that
    went through, None where none did. `nameless`: whether it makes files without a name."""

    path: Path
    refused: str = ""
    file_system: str = ""
    free: int = 0
    nameless: bool = True
    reserves: str = ""  # why space cannot be taken ahead
    alignment: int | None = None
    notices: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Everything; `cores` are those of the machine and those that this process may use, `open_files` the soft and the
    hard limit, -1 for none; `machine` says which description of a machine is used, `whole` whether it has all that
    zinf calibrate measures nowadays."""

    python: Version
    torch: Torch
    compiler: Compiler
    cuda: Cuda
    cores: tuple[int, int]
    memory: Memory
    open_files: tuple[int, int]
    io_uring: str  # why it cannot be used
    disks: tuple[Disk, ...]
    machine: str = ""
    machine_error: str = ""
    calibrated: bool = False
    whole: bool = True
