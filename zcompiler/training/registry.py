"""The tables of the process, for users hand zinf bare parameters, never an engine: which parameters zinf knows, which
updates are not complete, and who records what is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from zcompiler.training.late import LateUpdate
    from zcompiler.training.resting import Record
    from zcompiler.training.trace.recorded import Recorded

_RECORDS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_RUNNING: list[LateUpdate] = []
_TRACES: list[Recorded] = []  # at most one


def record_of(p: torch.Tensor) -> Record | None:
    return _RECORDS.get(p)


def remember(p: torch.Tensor, record: Record) -> None:
    _RECORDS[p] = record


def forget(p: torch.Tensor) -> None:
    _RECORDS.pop(p, None)


def records_of(parameters: Iterable[torch.Tensor]) -> list[Record]:
    return [record for p in parameters if (record := record_of(p)) is not None]


def known_parameters() -> list[torch.Tensor]:
    return list(_RECORDS.keys())


def running_updates() -> list[LateUpdate]:
    """The updates that are not complete although their optimizer step has returned."""
    return _RUNNING


def remember_update(update: LateUpdate) -> None:
    _RUNNING.append(update)


def forget_update(update: LateUpdate) -> None:
    if update in _RUNNING:
        _RUNNING.remove(update)


def complete_updates() -> None:
    """Complete all updates; errors stay for `settle`."""
    for update in list(_RUNNING):
        update.complete()


def settle() -> None:
    """Complete all updates. Raises what one of them raised, once."""
    for update in list(_RUNNING):
        update.complete()
        update.raise_error()


def running_trace() -> Recorded | None:
    return _TRACES[0] if _TRACES else None


def set_trace(trace: Recorded | None) -> None:
    _TRACES[:] = [] if trace is None else [trace]


def backward_ended() -> None:
    """Told after each backward of a graph."""
    if _TRACES:
        _TRACES[0].backward_ended()


def optimizer_stepped() -> None:
    """Told after each step of an optimizer that has parameters of zinf."""
    if _TRACES:
        _TRACES[0].optimizer_stepped()
