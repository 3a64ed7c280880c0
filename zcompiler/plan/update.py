"""The schedule of an optimizer step: each sub-group is read, updated and written back once, through bounded buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zcompiler.errors import DoesNotFit
from zcompiler.plan.plan import Homes
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.waits import with_waits

# At the ends of a sub-group the lanes have nothing to overlap, so few large ones are better than many small ones,
# until three of them (one read, one updated, one written) no longer fit.
LARGEST_SUBGROUP = 16 << 20
# Under a large limit they are a part of it, or there would be tens of thousands.
PART_OF_LIMIT = 1024
SMALLEST_SUBGROUP = 64 << 10
# Temporaries of an optimizer that is not fused, in bytes for each byte of parameters.
OPTIMIZER_WORK = 3


@dataclass(frozen=True, slots=True)
class SubGroup:
    """A part of a unit that is updated at once; where its kinds rest, and bytes of each.

    The values are called NAME, NAME:grad and NAME:state: no module name has a colon. `low`: copies of the parameters in
    narrower types (NAME:bf16) that are written beside them, by the short name of the type, and bytes of each.
    """

    name: str
    homes: Homes
    param: int
    grad: int
    state: int
    edits_grad: bool = False  # the step leaves another gradient behind than it found
    low: tuple[tuple[str, int], ...] = ()

    @property
    def nbytes(self) -> int:
        return self.param + self.grad + self.state

    def copies(self) -> list[Value]:
        """What is written and not read."""
        return [Value(f"{self.name}:{type_}", "param", type_, n, home=self.homes.params) for type_, n in self.low]

    def values(self) -> list[Value]:
        kinds = (
            ("param", self.name, self.param, self.homes.params),
            ("grad", f"{self.name}:grad", self.grad, self.homes.grads),
            ("state", f"{self.name}:state", self.state, self.homes.optimizer),
        )
        return [Value(name, kind, "bytes", size, home=home) for kind, name, size, home in kinds if size]


def subgroup_bytes(memory: int, held: int, homes: str, bytes_per_param_byte: float, tail: int = 0) -> int:
    """How many bytes of parameters a sub-group may have, so that three of them fit beside what is held.

    `held` is what rests in the compute tier during an update; `bytes_per_param_byte` how much moves for each byte of
    parameters (AdamW with everything in the store: 3); `tail` the temporaries the optimizer makes for each such byte;
    `homes` says where things rest. DoesNotFit when not even the smallest does.
    """
    each = (memory - held) / (3 * bytes_per_param_byte + tail)
    largest = max(LARGEST_SUBGROUP, memory // PART_OF_LIMIT // SMALLEST_SUBGROUP * SMALLEST_SUBGROUP)
    size = min(largest, int(each) // SMALLEST_SUBGROUP * SMALLEST_SUBGROUP)
    if size < SMALLEST_SUBGROUP:
        need = least_bytes(held, bytes_per_param_byte, tail)
        raise DoesNotFit(
            f"memory={format_bytes(memory)} is too small for an optimizer step: {format_bytes(held)} rest in memory "
            f"({homes}) and the smallest sub-group needs {format_bytes(need - held)} of buffers. "
            f"Set memory to at least {-(-need // (1 << 20))}MiB",
            need,
        )
    return size


def least_bytes(held: int, bytes_per_param_byte: float, tail: int) -> int:
    """The least memory an update can do with: what is held and three of the smallest sub-groups."""
    return held + int(SMALLEST_SUBGROUP * (3 * bytes_per_param_byte + tail))


def update_schedule(groups: Sequence[SubGroup], tiers: tuple[Tier, ...], work_per_param_byte: int = 0) -> Schedule:
    """The update before any pass. What rests in the compute tier is updated in place and does not move."""
    compute = next(t.name for t in tiers if t.compute)
    values: list[Value] = []
    regions: list[Region] = []
    for group in groups:
        own = group.values()
        made = group.copies()
        values += own + made
        moved = [v for v in own if v.home != compute]
        written = [v for v in own if v.kind != "grad" or group.edits_grad] + made
        title = f"update/{group.name}"
        ops = [Op("nvme_read", "read", v.name, "shard", str(v.home), compute) for v in moved]
        ops.append(
            Op(
                "update",
                "run",
                title,
                reads=tuple(v.name for v in own),
                writes=tuple(v.name for v in written),
                work=work_per_param_byte * group.param,
            )
        )
        moved += made
        ops += [Op("nvme_write", "write", v.name, "shard", compute, str(v.home)) for v in moved if v in written]
        ops += [Op("update", "release", v.name, "full", compute) for v in moved]
        regions.append(Region(title, tuple(ops)))
    return with_waits(Schedule("update", tiers, tuple(values), tuple(regions)))
