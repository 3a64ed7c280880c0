"""Which parameters zinf knows: the one table of the process, for users hand zinf bare parameters, never an engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from zcompiler.training.resting import Record

_RECORDS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def record_of(p: torch.Tensor) -> Record | None:
    return _RECORDS.get(p)


def remember(p: torch.Tensor, record: Record) -> None:
    _RECORDS[p] = record


def forget(p: torch.Tensor) -> None:
    _RECORDS.pop(p, None)


def records_of(parameters: Iterable[torch.Tensor]) -> list[Record]:
    return [record for p in parameters if (record := record_of(p)) is not None]
