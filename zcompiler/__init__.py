"""zinf: a torch.compile backend that trains and runs models whose states do not fit in fast memory.

`torch.compile(model, backend="zinf", options={...})` is all there is to use it. This module answers questions about a
compiled model: `stats`, `reset_stats`, `schedule`, `restore`; `trace` shows what a run did, `explain` why zinf would do
what it would do.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import zcompiler.schedule
from zcompiler.errors import DoesNotFit, ZinfError

if TYPE_CHECKING:
    from zcompiler.advise.explain import explain
    from zcompiler.training.models import reset_stats, restore, stats
    from zcompiler.training.statistics import Stats
    from zcompiler.training.trace.recorded import trace

__all__ = ["DoesNotFit", "Stats", "ZinfError", "explain", "reset_stats", "restore", "schedule", "stats", "trace"]


class _CallablePackage(types.ModuleType):
    """`zcompiler.schedule` is the package of the schedule language and, called with a model, its schedules: those in
    use, or with inputs, those that would be (see `describe` in zcompiler/describe/describe.py)."""

    def __call__(self, model: Any, inputs: Any = None, **others: Any) -> Any:
        if inputs is None and not others:
            from zcompiler.training.models import schedule

            return schedule(model)
        from zcompiler.describe.describe import describe

        return describe(model, inputs, **others)


zcompiler.schedule.__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    # Late, because torch takes seconds to import and the command line does without it where it can.
    if name in ("stats", "reset_stats", "restore"):
        from zcompiler.training import models

        return getattr(models, name)
    if name == "explain":
        from zcompiler.advise.explain import explain

        return explain
    if name == "trace":
        from zcompiler.training.trace.recorded import trace

        return trace
    if name == "Stats":
        from zcompiler.training.statistics import Stats

        return Stats
    raise AttributeError(f"module 'zcompiler' has no attribute {name!r}")
