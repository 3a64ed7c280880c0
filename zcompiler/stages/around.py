"""What a graph meets on its way to a schedule: options, tiers, and what earlier graphs and models have decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from zcompiler.machine.machine import Machine
from zcompiler.machine.parts import Parts
from zcompiler.options import OPTIMIZER_STATES, Options
from zcompiler.plan.file import MadeFor, PlanFile
from zcompiler.plan.plan import Holds
from zcompiler.schedule.model import Tier


@dataclass(frozen=True, slots=True)
class Around:
    """`compute`: "inductor" or "eager", as it can be had here. A step is priced on
    `machine`. `tiled`: the globs of option `tile` that fitted some
    parameter, which the graphs add to.

    `why_left` says why a parameter cannot be moved and is an ordinary input to the graph, None for one that can;
    `decided` the homes, by kind, that earlier graphs chose for it; `taken` the bytes of the limit that parameters
    other than these hold at rest, with their gradients and states. `notices_edits`: whether the store tells when a
    mapped file is written. `note` is told of fallbacks. `given` are the plans that the user has given, if any,
    `made_for` what those that are made here are for; `holds` gives the sizes for which earlier plans hold.
    """

    options: Options
    compute: str
    parts: Parts
    machine: Machine
    tiled: set[str]
    why_left: Callable[[torch.Tensor], str | None]
    decided: Callable[[torch.Tensor], tuple[tuple[str, str], ...]]
    taken: Callable[[Sequence[torch.Tensor]], int]
    notices_edits: Callable[[], bool]
    note: Callable[[str], None]
    made_for: MadeFor
    given: PlanFile | None = None
    holds: Callable[[], Sequence[Holds]] = tuple

    @property
    def fused(self) -> bool:
        """Whether Inductor compiles the regions."""
        return self.compute == "inductor"


def tiers_of(parts: Parts, taken: int = 0) -> tuple[Tier, ...]:
    """The tiers of a schedule, with `taken` bytes less in the compute tier."""
    tiers = []
    for t in parts.tiers:
        compute, left = t.name == parts.compute, t.capacity
        if compute and left is not None:
            left = max(0, left - taken)
        tiers.append(Tier(t.name, left, compute))
    return tuple(tiers)


def states_per_parameter_byte(options: Options) -> int:
    """Bytes of state that the planned optimizer keeps for each byte of parameters, with its default settings; at most,
    where 16-bit parameters are updated in 32 bits."""
    states = len(OPTIMIZER_STATES[options.optimizer])
    return 2 * (states + 1) if options.master else states
