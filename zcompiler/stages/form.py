"""One form of a captured graph: what its regions take for parameters, and its schedule before any pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

from zcompiler.analyse.buckets import Bucket, buckets_of
from zcompiler.analyse.sizes import Sizes
from zcompiler.capture.captured import Captured
from zcompiler.capture.low import with_low_parameters
from zcompiler.options import Activations, Options
from zcompiler.plan.plan import UNCUT, Placement
from zcompiler.plan.saved import with_room_for_copies, without_saved
from zcompiler.plan.step import Step, bare_step
from zcompiler.schedule.model import Schedule, Tier
from zcompiler.stages.around import Around, states_per_parameter_byte

Decided = Callable[[int], tuple[tuple[str, str], ...]]  # Dynamo position -> (kind of state, its home), where known


class Form:
    """A graph over parameters as they rest, over rows of them, or over their cast copies, with its schedule before any
    pass."""

    def __init__(
        self,
        name: str,
        captured: Captured,
        buckets: tuple[Bucket, ...],
        around: Around,
        tiers: tuple[Tier, ...],
        kind: str = "plain",
    ) -> None:
        """`kind` as in a `Plan`."""
        self.name, self.captured, self.buckets, self.kind = name, captured, buckets, kind
        self._around, self._tiers, self._counted = around, tiers, True

    def having(self, activations: Activations, counted: bool = True) -> Form:
        """The same for a choice of activations; `counted`: whether what forward saves for backward takes memory. The
        schedule before any pass, which is a good part of planning, is made once for all choices."""
        _ = self.step
        made = copy(self)
        made._around = replace(self._around, options=replace(self._around.options, activations=activations))
        made._counted = counted
        return made

    @property
    def options(self) -> Options:
        return self._around.options

    def at(self, sizes: Sizes, placement: Placement) -> Schedule:
        """As `placed`, with other sizes for symbols."""
        return self._placed(self._step(sizes), placement).schedule

    @cached_property
    def step(self) -> Step:
        return self._step(None)

    def _step(self, sizes: Sizes | None) -> Step:
        factor = states_per_parameter_byte(self._around.options)
        trains = self.captured.backward is not None
        states = {b.name: b.whole * factor for b in self.buckets if trains and not b.has_tiles}
        fused, uncut = self._around.fused, self.kind == UNCUT
        return bare_step(self.name, self.captured, self.buckets, self._tiers, states, fused, sizes, uncut)

    def placed(self, placement: Placement) -> Step:
        """The same for a placement, with room for what the user's choice of activations needs."""
        return self._placed(self.step, placement)

    def _placed(self, step: Step, placement: Placement) -> Step:
        step = step.placed(placement)
        if not self._counted:
            return replace(step, schedule=without_saved(step.schedule))
        return with_room_for_copies(step) if self._around.options.activations.offload else step

    def with_low(self, inputs: Sequence[Any], stays: Callable[[int], bool], decided: Decided) -> Form | None:
        """The same over the copies in 16 bits, if there are any; not of parameters that it is decided to hold."""
        captured = with_low_parameters(self.captured, stays)
        if not captured.low:
            return None
        low = Form(self.name, captured, buckets_of(captured, inputs, decided), self._around, self._tiers, "low")
        low._counted = self._counted
        return low
