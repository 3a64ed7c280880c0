"""What rests where, once the graphs so far have been called: what `training/resting.py` does to live parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zcompiler.capture.names import numbered
from zcompiler.machine.parts import Parts
from zcompiler.plan.plan import Homes
from zcompiler.stages.graph import Planned


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

    def place(self, planned: Planned, inputs: Sequence[torch.Tensor]) -> None:
        """A graph is called with these inputs: what it finds nowhere, or has to move, gets its place."""
        trains = planned.captured.backward is not None
        for bucket in planned.buckets:
            homes = planned.plan.placement[bucket.name]
            new = [p for i in bucket.positions if self._wants(p := inputs[i], homes, trains)]
            if new:
                unit = Unit(numbered(bucket.rests_as, self._names), homes, sum(p.nbytes for p in new), trains)
                self._units.update((id(p), unit) for p in new)

    def _wants(self, p: torch.Tensor, homes: Homes, trains: bool) -> bool:
        unit = self.unit_of(p)
        if unit is None:
            return True
        first = trains and not unit.trained
        return not self._stored(unit) and (homes.params == self.parts.store or first)

    def _stored(self, unit: Unit) -> bool:
        return unit.homes.params == self.parts.store
