"""What a user may ask about a model that zinf compiled: statistics, schedules, and to have everything back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from zcompiler.logs import stage
from zcompiler.progress import progress
from zcompiler.schedule.model import Schedule
from zcompiler.training.observed import leave_alone
from zcompiler.training.optimizers import restore_states
from zcompiler.training.registry import record_of, records_of, settle
from zcompiler.training.resting import give_back
from zcompiler.training.session import Session, not_compiled
from zcompiler.training.statistics import Stats


def stats(model: torch.nn.Module) -> Stats:
    """What has happened since the first compile or the last `reset_stats`; see `Stats`.

    Takes the model or its compiled form. ZinfError before its first compiled call. Disturbs nothing: what a late update
    is still to move is not in it yet.
    """
    return _session(model).stats()


def reset_stats(model: torch.nn.Module) -> None:
    """Count from now on. Takes the model or its compiled form. ZinfError before its first compiled call."""
    settle()
    _session(model).reset_stats()


class UsedSchedules(dict[str, Schedule]):
    """Schedules by name, and the plans behind them as the text of a file."""

    def __init__(self, schedules: Mapping[str, Schedule], plans: str) -> None:
        super().__init__(schedules)
        self._plans = plans

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Write the plans of all graphs to a file that the option `plan` takes. OSError as for any file."""
        Path(path).write_text(self._plans, encoding="utf-8")


def schedule(model: torch.nn.Module) -> UsedSchedules:
    """The schedules in use, by name: "graph0" and so on for each compiled graph, "update" for the optimizer step.

    `str()` of one is its `.zsched` text; `save_plan(path)` writes the plans behind them. Takes the model or its
    compiled form. ZinfError before its first compiled call.
    """
    session = _session(model)
    return UsedSchedules(session.schedules, session.plans_text())


def restore(model: torch.nn.Module) -> None:
    """Bring parameters, gradients and optimizer states of a model back to ordinary memory, and give the store up.

    Afterwards it is as if zinf had never touched it; a further compiled call would take it over again. Takes the model
    or its compiled form; does nothing to a model that zinf does not hold. MemoryError as for any allocation.
    """
    settle()
    parameters = list(_module(model).parameters())
    sizes = [p.numel() * p.element_size() for p in parameters]
    with stage(f"restore of {len(parameters)} parameters"), progress("restoring", sum(sizes)) as advance:
        for p, size in zip(parameters, sizes, strict=True):
            restore_states([p])
            if record_of(p) is not None:
                if p.grad is not None:
                    p.grad = p.grad.clone(memory_format=torch.preserve_format)
                give_back(p)
            leave_alone(p)
            advance(size)


def _session(model: torch.nn.Module) -> Session:
    records = records_of(_module(model).parameters())
    if not records:
        raise not_compiled(model)
    return records[0].unit.session


def _module(model: object) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"wants a model (nn.Module) or its compiled form, not {type(model).__name__}")
    return model
