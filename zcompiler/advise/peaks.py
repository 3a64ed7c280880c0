"""What makes the peak of a tier: what is held at that op, by kind, the largest by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from zcompiler.advise import explained as kinds
from zcompiler.advise.explained import Holding, Peak
from zcompiler.advise.names import whole
from zcompiler.schedule.flow import Copy, rest_place
from zcompiler.schedule.memory import START, event_name, held_at, memory
from zcompiler.schedule.model import Schedule

_NAMED = 3
_KINDS = {"grad": kinds.GRADIENTS, "state": kinds.STATES, "act": kinds.ACTIVATIONS, "output": kinds.OUTPUTS}


def peaks_of(schedule: Schedule) -> tuple[Peak, ...]:
    """One for each counted tier."""
    used = memory(schedule)
    ops = list(schedule.ops())
    found = []
    for tier, during in used.during.items():
        at, where, most = -1, START, used.start[tier]
        if len(during) and int(during.max()) > most:
            at = int(np.argmax(during))
            where, most = event_name(*ops[at]), int(during[at])
        copies, work = held_at(schedule, tier, at)
        budget = schedule.tier(tier).budget
        found.append(Peak(schedule.name, tier, most, budget, where, _holdings(schedule, copies, work)))
    return tuple(found)


def _holdings(schedule: Schedule, copies: Iterable[Copy], work: int) -> tuple[Holding, ...]:
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for copy in copies:
        held[_kind(schedule, copy)][whole(copy.place.value)] += copy.nbytes
    found = [Holding(kind, own.total(), len(own), tuple(own.most_common(_NAMED))) for kind, own in held.items()]
    if work:
        found.append(Holding(kinds.TEMPORARIES, work, 1, ()))
    return tuple(sorted(found, key=lambda holding: -holding.nbytes))


def _kind(schedule: Schedule, copy: Copy) -> str:
    if copy.kind == "param":
        rests = copy.place == rest_place(schedule, schedule.value(copy.place.value))
        return kinds.AT_REST if rests else kinds.GATHERED
    return _KINDS[copy.kind]
