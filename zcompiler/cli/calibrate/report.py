"""A machine as a table for people."""

from __future__ import annotations

from rich.table import Table

from zcompiler.machine.machine import Machine
from zcompiler.quantities import BANDWIDTHS, FLOP_RATES, SIZES, TIMES, format_quantity

# What stands in front of the rows that are not a table of the file each.
TITLES = {"elementwise": "elementwise ops", "reduction": "reductions", "copy": "copies", "fresh": "memory taken anew"}


def machine_table(machine: Machine) -> Table:
    """Every figure of the machine with what it is, and whether it was measured or described."""
    table = Table(title=f"Machine: {machine.name}")
    for column in ("", "figure", "latency", "source"):
        table.add_column(column, justify="right" if column in ("figure", "latency") else "left")

    def row(title: str, figure: str, part: str, latency: str = "") -> None:
        table.add_row(title, figure, latency, "measured" if part in machine.measured else "[yellow]described[/yellow]")

    for tier in machine.tiers:
        size = "unlimited" if tier.capacity is None else format_quantity(tier.capacity, SIZES)
        table.add_row(f"{tier.name} holds", size, "", "")
    for lane in machine.lanes:
        latency = format_quantity(lane.latency, TIMES)
        row(lane.name, format_quantity(lane.bandwidth, BANDWIDTHS), f"lanes.{lane.name}", latency)
        if lane.interference is not None:
            figure = format_quantity(lane.interference, BANDWIDTHS)
            row(f"{lane.name}, a second of compute", figure, f"lanes.{lane.name}")
    for rates in machine.matmuls:
        for side, rate in rates.points:
            row(f"matmul {rates.dtype} {side}", format_quantity(rate, FLOP_RATES), f"matmul.{rates.dtype}")
    for dtype, rate in machine.attention:
        row(f"attention {dtype}", format_quantity(rate, FLOP_RATES), f"attention.{dtype}")
    for key, title in TITLES.items():
        row(title, format_quantity(getattr(machine, key), BANDWIDTHS), "memory")
    for key in ("kernel", "region"):
        row(f"call of a {key}", format_quantity(getattr(machine, key), TIMES), "calls")
    for key in ("fused", "unfused"):
        row(f"AdamW, {key}", format_quantity(getattr(machine, key), BANDWIDTHS), "update")
    return table
