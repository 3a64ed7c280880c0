"""What zinf would do with the zoo: the schedules of each model at each limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zcompiler
from bench.zoo.models import Kind
from zcompiler.compare.metrics import Side
from zcompiler.errors import ZinfError

# Plans depend on the machine, so it is named. Eager, because a graph without Inductor's decompositions is much the same
# from one torch to the next, and needs no C++ compiler.
OPTIONS = {"machine": "laptop", "compute": "eager"}

Case = tuple[str, str]  # model, limit


def described(zoo: Iterable[Kind]) -> Iterator[tuple[Case, Side | ZinfError]]:
    """One after the other, as they are asked for: seconds each. A limit that no longer does, or a
    pass that breaks a rule, is told and not raised."""
    for kind in zoo:
        model, batch = kind.build()
        for limit in kind.limits:
            options = {**OPTIONS, "memory": limit.memory, "activations": limit.activations}
            found: Side | ZinfError
            try:
                made = zcompiler.schedule(model, dict(batch), options=options, update=kind.update)
                schedules = {graph.name: graph.final for graph in made.graphs}
                found = Side(schedules if made.update is None else {**schedules, "update": made.update})
            except ZinfError as refusal:
                found = refusal
            yield (kind.name, limit.name), found
