"""The way of an update to its schedule: parameters cut into parts, parts put together to sub-groups, and the passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zcompiler.layout import ALIGNMENT
from zcompiler.machine.parts import Parts
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Homes, describe
from zcompiler.plan.update import OPTIMIZER_WORK, SubGroup, subgroup_bytes, update_schedule
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.stages.around import tiers_of

# Slices that start at multiples of this many elements give bit for bit what the whole tensor gives: vector code
# treats a tail differently, and this is a multiple of every vector length times every unrolling.
SLICE = 16384


@dataclass(frozen=True, slots=True)
class Updated:
    """A parameter that an optimizer updates: elements and bytes of each; where its unit rests, and whether its
    gradient is in the store; bytes of each element of its `states`; the narrower types, with their bytes, in which
    copies are written beside it (`low`); whether the step leaves another gradient behind than it finds."""

    elements: int
    itemsize: int
    homes: Homes
    stored_grad: bool
    states: tuple[int, ...] = ()
    low: tuple[tuple[str, int], ...] = ()
    edits_grad: bool = False

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def state_bytes(self) -> float:
        """Bytes of states for each byte of the parameter."""
        return sum(self.states) / self.itemsize


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of the parameter with this number in its unit."""

    member: int
    start: int
    stop: int

    def padded(self, itemsize: int) -> int:
        return -(-(self.stop - self.start) * itemsize // ALIGNMENT) * ALIGNMENT


Units = Mapping[str, Sequence[Updated]]  # in the order in which they are updated


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """An update in sub-groups: `groups`, and by their names, which `parts` of which unit they are. `ahead`: bytes that
    are read ahead."""

    parts: Mapping[str, tuple[str, Sequence[Slice]]]
    groups: tuple[SubGroup, ...]
    ahead: int
    machine: Parts

    def schedule(self) -> Schedule:
        """The finished schedule."""
        bare = update_schedule(self.groups, tiers_of(self.machine), OPTIMIZER_WORK)
        return run_pipeline(bare, parse_pipeline(f"prefetch-reads{{bytes={format_bytes(self.ahead)}}}"))


def plan_update(units: Units, size: int, depth: int, machine: Parts) -> UpdatePlan:
    """The update of `units` in sub-groups of about `size` bytes of parameters, of which `depth` are read ahead."""
    parts: dict[str, tuple[str, list[Slice]]] = {}
    groups: list[SubGroup] = []
    for unit, updated in units.items():
        pieces = pieces_of(updated, size)
        for i, piece in enumerate(pieces):
            name = unit if len(pieces) == 1 else f"{unit}[{i}]"
            parts[name] = unit, piece
            groups.append(_subgroup(name, updated, piece, machine))
    return UpdatePlan(parts, tuple(groups), depth * max(g.nbytes for g in groups), machine)


def largest_subgroup(units: Units, machine: Parts, memory: int) -> int:
    """Bytes of parameters that a sub-group may have when nothing else goes on. DoesNotFit if that is too little."""
    held = 0.0
    for updated in units.values():
        for u in updated:
            resting = float((u.homes.params != machine.store) + (not u.stored_grad))
            held += u.nbytes * (resting + u.state_bytes * (u.homes.optimizer != machine.store))
    where = describe({unit: updated[0].homes for unit, updated in units.items()})
    return subgroup_bytes(memory, int(held), where, moved_bytes(units, machine), OPTIMIZER_WORK)


def moved_bytes(units: Units, machine: Parts) -> float:
    """Bytes that move for each byte of parameters, at most."""
    most = 0.0
    for updated in units.values():
        for u in updated:
            moved = (u.homes.params == machine.store) + u.stored_grad
            copies = sum(itemsize for _, itemsize in u.low) / u.itemsize
            most = max(most, moved + copies + u.state_bytes * (u.homes.optimizer == machine.store))
    return most


def pieces_of(updated: Sequence[Updated], size: int) -> list[list[Slice]]:
    """Parameters cut into parts, and parts put together to sub-groups of about `size` bytes."""
    pieces: list[list[Slice]] = [[]]
    filled = 0
    for number, u in enumerate(updated):
        longest = max(SLICE, size // u.itemsize // SLICE * SLICE)
        for start in range(0, u.elements, longest):
            part = Slice(number, start, min(start + longest, u.elements))
            if filled and filled + part.padded(u.itemsize) > size:
                pieces.append([])
                filled = 0
            pieces[-1].append(part)
            filled += part.padded(u.itemsize)
    return pieces


def _subgroup(name: str, updated: Sequence[Updated], piece: Sequence[Slice], machine: Parts) -> SubGroup:
    own = [(updated[part.member], part) for part in piece]
    stored = any(u.stored_grad for u, _ in own)
    homes = replace(own[0][0].homes, grads=machine.store if stored else machine.compute)
    low: dict[str, int] = {}
    for u, part in own:
        for dtype, itemsize in u.low:
            low[dtype] = low.get(dtype, 0) + part.padded(itemsize)
    return SubGroup(
        name,
        homes,
        param=sum(part.padded(u.itemsize) for u, part in own),
        grad=sum(part.padded(u.itemsize) for u, part in own if not stored or u.stored_grad),
        state=sum(part.padded(itemsize) for u, part in own for itemsize in u.states),
        edits_grad=any(u.edits_grad for u, _ in own),
        low=tuple(low.items()),
    )
