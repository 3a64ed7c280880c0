"""All rows, in groups."""

from __future__ import annotations

from zcompiler.cli.doctor.found import Found
from zcompiler.cli.doctor.judge.disk import disk
from zcompiler.cli.doctor.judge.software import software
from zcompiler.cli.doctor.judge.system import system
from zcompiler.cli.doctor.rows import Row

Groups = dict[str, tuple[Row, ...]]


def judge(found: Found) -> Groups:
    """Rows by the title of their group: software, the machine, and each folder."""
    groups = {"Software": tuple(software(found)), "Machine": tuple(system(found))}
    return groups | {f"Disk {d.path}": tuple(disk(d, found.memory.free)) for d in found.disks}


def usable(groups: Groups) -> bool:
    """Whether zinf works here as it is."""
    return all(row.level != "problem" for rows in groups.values() for row in rows)
