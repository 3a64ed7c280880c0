"""A target of the command line, ready to be described."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from zcompiler.cli.dump.config import DTYPES
from zcompiler.cli.dump.target import Target, Wanted, load
from zcompiler.compare.metrics import Side
from zcompiler.describe.describe import describe
from zcompiler.describe.described import Schedules


@contextmanager
def as_it_runs(autocast: str | None) -> Iterator[None]:
    """Around what describes: under autocast, if the model runs under it.

    Garbage is seldom collected: a deep graph is millions of objects, nearly all of which stay to the end, and looking
    for others takes a tenth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        with torch.autocast("cpu", DTYPES[autocast]) if autocast is not None else nullcontext():
            yield
    finally:
        gc.set_threshold(*before)


def described(
    wanted: Wanted, options: Mapping[str, Any], *, autocast: str | None = None, update: bool = True
) -> Schedules:
    """What zinf would do with the target. Raises as `load` and `describe` do."""
    target: Target = load(wanted)
    with as_it_runs(autocast):
        return describe(
            target.model,
            target.inputs,
            loss=target.loss,
            optimizer=target.optimizer,
            options=options,
            train=wanted.train,
            update=update,
        )


def side_of(found: Schedules) -> Side:
    """What is described, to be compared: graphs by name and "update", with the work of their runs."""
    schedules = {graph.name: graph.final for graph in found.graphs}
    works = {graph.name: graph.works for graph in found.graphs}
    if found.update is not None:
        schedules["update"] = found.update
    return Side(schedules, found.compiled, works)
