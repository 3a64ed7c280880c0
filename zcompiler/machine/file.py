"""A `Machine` as a TOML file, in and out; docs/machine.md shows one."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import tomllib
from pathlib import Path

import tomli_w

from zcompiler.machine.machine import Lane, Machine, MatmulRates, Memory
from zcompiler.machine.table import UNLIMITED, MachineError, Table
from zcompiler.machine.work import ITEM
from zcompiler.quantities import BANDWIDTHS, FLOP_RATES, SIZES, TIMES, format_quantity

VERSION = 1
TIERS = ("device", "host", "nvme")
DISK_LANES = ("nvme_read", "nvme_write", "nvme_mixed")
DEVICE_LANES = ("h2d", "d2h")
LANES = (*DISK_LANES, *DEVICE_LANES, "comm")
_MEMORY = ("elementwise", "reduction", "copy", "fresh")
_REQUIRED = ("memory", "calls", "update")
_CALLS = ("kernel", "region")
_UPDATE = ("fused", "unfused")


def read_machine(path: Path) -> Machine:
    """The machine that a file describes. MachineError when it is not there, or naming what is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MachineError(
            f"machine file {path} cannot be read ({why}): name another, or write one with `zinf calibrate --output "
            f"{path}`"
        ) from error
    return parse_machine(text, f"machine file {path}")


def write_machine(machine: Machine, path: Path, comment: str = "") -> None:
    """Put the file in place, whole or not at all; its folder is made if missing. OSError as for any file.

    `comment` becomes comment lines above it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".zinf-", delete=False) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # so `zinf clean` can tell it from what a kill has left
            file.write("".join(f"# {line}\n" for line in comment.splitlines()) + format_machine(machine))
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:  # Ctrl-C, too, leaves nothing
            os.unlink(file.name)
            raise


def format_machine(machine: Machine) -> str:
    """The text that `parse_machine` reads back as exactly this machine."""
    return tomli_w.dumps(
        {
            "zinf-machine": VERSION,
            "name": machine.name,
            "measured": list(machine.measured),
            "tiers": {
                tier.name: UNLIMITED if tier.capacity is None else format_quantity(tier.capacity, SIZES)
                for tier in machine.tiers
            },
            "lanes": {lane.name: _lane_table(lane) for lane in machine.lanes},
            "matmul": {
                rates.dtype: {str(side): format_quantity(rate, FLOP_RATES) for side, rate in rates.points}
                for rates in machine.matmuls
            },
            **({"attention": _attention_table(machine)} if machine.attention else {}),
            "memory": {key: format_quantity(getattr(machine, key), BANDWIDTHS) for key in _MEMORY},
            "calls": {key: format_quantity(getattr(machine, key), TIMES) for key in _CALLS},
            "update": {key: format_quantity(getattr(machine, key), BANDWIDTHS) for key in _UPDATE},
        },
        multiline_strings=False,
    )


def parse_machine(text: str, where: str) -> Machine:
    """The machine that a text describes; `where` is what errors call it. MachineError naming key, value and remedy."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(f"{where} is not TOML: {error}") from error
    top = Table(where, "", raw)
    if raw.get("zinf-machine", VERSION) != VERSION:
        top.refuse("zinf-machine", f"{VERSION}, the version of the format that this zinf reads")
    top.only(("zinf-machine", "name", "measured", "tiers", "lanes", "matmul", "attention", *_REQUIRED))
    top.get("zinf-machine", str(VERSION))

    tiers = top.table("tiers")
    tiers.only(TIERS, required=("host", "nvme"))
    capacities = {name: tiers.capacity(name) for name in tiers.raw}

    lanes = top.table("lanes")
    lanes.only(LANES, required=(*DISK_LANES, *(DEVICE_LANES if "device" in capacities else ())))
    matmul = top.table("matmul")
    matmul.only(ITEM, required=("f32",))
    attention = top.table("attention") if "attention" in top.raw else None
    if attention is not None:
        attention.only(ITEM)
    memory, calls, update = (top.table(name) for name in _REQUIRED)
    for table, keys in ((memory, _MEMORY), (calls, _CALLS), (update, _UPDATE)):
        table.only(keys, required=keys)
    return Machine(
        name=top.text("name"),
        tiers=tuple(Memory(name, capacity) for name, capacity in capacities.items()),
        lanes=tuple(_lane(lanes.table(name), name) for name in lanes.raw),
        matmuls=tuple(_rates(matmul.table(dtype), dtype) for dtype in matmul.raw),
        **{key: memory.quantity(key, BANDWIDTHS) for key in _MEMORY},
        **{key: calls.quantity(key, TIMES) for key in _CALLS},
        **{key: update.quantity(key, BANDWIDTHS) for key in _UPDATE},
        attention=tuple((dtype, attention.quantity(dtype, FLOP_RATES)) for dtype in attention.raw) if attention else (),
        measured=top.measured("measured"),
    )


def _attention_table(machine: Machine) -> dict[str, str]:
    return {dtype: format_quantity(rate, FLOP_RATES) for dtype, rate in machine.attention}


def _lane_table(lane: Lane) -> dict[str, str]:
    made = {
        "bandwidth": format_quantity(lane.bandwidth, BANDWIDTHS),
        "latency": format_quantity(lane.latency, TIMES),
    }
    if lane.interference is not None:
        made["interference"] = format_quantity(lane.interference, BANDWIDTHS)
    return made


def _lane(table: Table, name: str) -> Lane:
    table.only(("bandwidth", "latency", "interference"))
    interference = table.quantity("interference", BANDWIDTHS) if "interference" in table.raw else None
    return Lane(name, table.quantity("bandwidth", BANDWIDTHS), table.quantity("latency", TIMES), interference)


def _rates(table: Table, dtype: str) -> MatmulRates:
    if not table.raw:
        table.fail('is empty: give it the rate of at least one square matmul, such as 256 = "85GFLOP/s"')
    sides = []
    for key in table.raw:
        if not re.fullmatch("[1-9][0-9]{0,8}", key):
            table.fail(f'has the key "{key}": its keys are sides of square matmuls, such as 256 = "85GFLOP/s"')
        sides.append(int(key))
    points = tuple((side, table.quantity(str(side), FLOP_RATES)) for side in sorted(sides))
    for (small, slow), (large, fast) in zip(points, points[1:], strict=False):
        if large**3 / fast < small**3 / slow:
            table.fail(
                f"has {large} faster than {small} by more than its {(large / small) ** 3:.4g} times as many "
                "operations, so the larger matmul would take less time: measure both again"
            )
    return MatmulRates(dtype, points)
