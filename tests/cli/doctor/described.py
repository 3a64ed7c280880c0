"""A machine on which everything is as zinf wishes, for tests that change one thing about it."""

from __future__ import annotations

from pathlib import Path

from zcompiler.cli.doctor.found import Compiler, Cuda, Disk, Found, Memory, Torch

GIB = 1 << 30
DISK = Disk(Path("/disk"), "", "ext4", 64 * GIB, True, "", 512, True)
MEMORY = Memory(32 * GIB, 16 * GIB, huge_pages="madvise", allocator="glibc 2.36")
GOOD = Found(
    python=(3, 11, 7),
    torch=Torch("2.13.0+cpu", threads=4),
    compiler=Compiler("g++"),
    cuda=Cuda(),
    cores=(4, 4),
    memory=MEMORY,
    open_files=(65536, 65536),
    io_uring="",
    disks=(DISK,),
    machine="calibrated (measured by zinf calibrate)",
    calibrated=True,
)
