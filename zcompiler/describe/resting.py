"""What rests where and who uses it, once the graphs so far were called: what `training/` notes of live parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from zcompiler.capture.names import numbered
from zcompiler.machine.parts import Parts
from zcompiler.plan.beside import Used, room_beside, uses_of
from zcompiler.plan.plan import Homes
from zcompiler.schedule.model import Schedule
from zcompiler.stages.planned import Planned


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that rest together. `trained`: a graph that makes gradients knows them."""

    name: str
    homes: Homes
    nbytes: int
    trained: bool


class Resting:
    """The units of one model, by parameter."""

    def __init__(self, parts: Parts, states: int) -> None:
        """`states`: bytes of optimizer state for each byte of parameters."""
        self.parts, self._states = parts, states
        self._units: dict[int, Unit] = {}
        self._observed: set[int] = set()
        self._low: dict[int, dict[torch.dtype, None]] = {}
        self._forwards: dict[str, tuple[list[Used], dict[str, list[int]]]] = {}
        self._rows: set[str] = set()
        self._names: Counter[str] = Counter()

    def unit_of(self, p: torch.Tensor) -> Unit | None:
        return self._units.get(id(p))

    def decided(self, p: torch.Tensor) -> tuple[tuple[str, str], ...]:
        """The homes of a parameter that are decided, by kind."""
        unit = self.unit_of(p)
        return unit.homes.decided(unit.trained, self._stored(unit)) if unit is not None else ()

    def taken(self, without: Sequence[torch.Tensor]) -> int:
        """Bytes in the compute tier of units to which none of these parameters belongs."""
        own = {self._units.get(id(p)) for p in without}
        tier = self.parts.compute
        others = set(self._units.values()) - own
        return sum(unit.nbytes * unit.homes.held(tier, self._states, unit.trained) for unit in others)

    def observed(self, p: torch.Tensor) -> bool:
        """Whether zinf would see an outside look at it."""
        return id(p) in self._observed

    def low(self, p: torch.Tensor) -> tuple[torch.dtype, ...]:
        """The narrower types in which graphs take this parameter."""
        return tuple(self._low.get(id(p), ()))

    def beside_forwards(self, waiting: Mapping[int, int]) -> tuple[dict[int, int], int]:
        """As `room_beside`, by ids of parameters."""
        return room_beside(list(self._forwards.values()), self._rows, waiting)

    def call(self, planned: Planned, schedule: Schedule, inputs: Sequence[torch.Tensor]) -> None:
        """A graph is called with these inputs: what it finds nowhere, or has to move, gets its place."""
        trains, store = planned.captured.backward is not None, self.parts.store
        for bucket in planned.buckets:
            homes, own = planned.plan.placement[bucket.name], [inputs[i] for i in bucket.positions]
            new = [p for p in own if self._wants(p, homes, trains)]
            if new:
                unit = Unit(numbered(bucket.rests_as, self._names), homes, sum(p.nbytes for p in new), trains)
                self._units.update((id(p), unit) for p in new)
            if homes.uses(store) or planned.plan.uses(store):
                self._observed.update(map(id, own))
            if bucket.low is not None:
                for p in own:
                    self._low.setdefault(id(p), {})[bucket.low] = None
        if trains and planned.name not in self._forwards:
            keys = {b.name: [id(inputs[i]) for i in b.positions] for b in planned.buckets}
            self._forwards[planned.name] = uses_of(schedule), keys
            self._rows.update(b.name for b in planned.buckets if b.tile is not None)

    def _wants(self, p: torch.Tensor, homes: Homes, trains: bool) -> bool:
        unit = self.unit_of(p)
        if unit is None:
            return True
        first = trains and not unit.trained
        return not self._stored(unit) and (homes.params == self.parts.store or first)

    def _stored(self, unit: Unit) -> bool:
        return unit.homes.params == self.parts.store
