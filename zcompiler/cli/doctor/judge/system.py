"""Processors, memory, limits, and which description of a machine is used."""

from __future__ import annotations

from collections.abc import Iterator

from zcompiler.cli.doctor.found import Found, Memory
from zcompiler.cli.doctor.rows import Row, size

# That a unit takes with AdamW and everything in the store: two each for parameters, gradients and either state.
FILES_PER_UNIT = 8
UNITS = 128  # more than most models have layers


def system(found: Found) -> Iterator[Row]:
    yield processors(found.cores, found.torch.threads)
    yield from memory(found.memory)
    yield open_files(*found.open_files)
    if found.io_uring:
        yield Row("io_uring", "ok", f"not to be used here ({found.io_uring}); zinf does without")
    else:
        yield Row("io_uring", "ok", "there; zinf does without")
    yield machine(found)


def processors(cores: tuple[int, int], threads: int) -> Row:
    all_cores, ours = cores
    said = f"{all_cores}" + (f", of which this process may use {ours}" if ours < all_cores else "")
    if not threads:  # torch cannot be asked
        return Row("processors", "ok", said)
    said += f"; torch computes with {threads} thread{'s' if threads > 1 else ''}"
    # Half of them is as it should be where each core is two to the system.
    if threads > ours or threads < ours // 2:
        return Row("processors", "note", said, f"set OMP_NUM_THREADS to {ours}, or to the number of cores")
    return Row("processors", "ok", said)


def memory(found: Memory) -> Iterator[Row]:
    if found.error:
        say = 'say the limit: options={"memory": "4GiB"}'
        yield Row("memory", "note", f"what is free cannot be told: {found.error}", say)
    else:
        yield Row("memory", "ok", f"{size(found.free)} free for this process, of {size(found.total)}")
        tight = [limit for limit in found.limits if limit.limit < found.total]  # version 1 writes 2**63 for none
        for limit in tight:
            said = f"cgroup (version {limit.version}) {limit.folder}: {size(limit.left)} left of {size(limit.limit)}"
            yield Row("memory limit", "ok", said)
        if not tight:
            yield Row("memory limit", "ok", "no memory cgroup limits this process")
    if found.huge_pages == "never":
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)"
        yield Row("huge pages", "note", "never: buffers are made of small pages, which takes longer", remedy)
    else:
        yield Row("huge pages", "ok", found.huge_pages)
    if found.allocator.startswith("glibc"):
        yield Row("malloc", "ok", found.allocator)
    else:
        said = f"{found.allocator}, not glibc: what is freed may stay with it, beyond the limit that you set"
        yield Row("malloc", "note", said, "run without LD_PRELOAD of another malloc, on a system with glibc")


def open_files(soft: int, hard: int) -> Row:
    if soft < 0:
        return Row("open files", "ok", "unlimited")
    units = soft // FILES_PER_UNIT
    said = f"{soft} at once, enough for about {units} units (layers)"
    if units >= UNITS:
        return Row("open files", "ok", said)
    wanted = FILES_PER_UNIT * UNITS
    how = f"ulimit -n {wanted}" if hard < 0 or hard >= wanted else f"have the limit raised, by root, from {hard}"
    return Row("open files", "note", said, how)


def machine(found: Found) -> Row:
    if found.machine_error:
        return Row("machine", "problem", found.machine_error, "mend or remove the file, or zinf calibrate anew")
    if found.calibrated and not found.whole:
        said = f"{found.machine}, but before attention was measured apart: it is priced as a matmul, which is too fast"
        return Row("machine", "note", said, "zinf calibrate")
    if found.calibrated:
        return Row("machine", "ok", found.machine)
    return Row("machine", "note", f"not measured: {found.machine.partition(';')[0].rstrip(')')})", "zinf calibrate")
