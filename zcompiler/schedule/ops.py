"""What the nodes of a schedule's FX graph call. The graph is rewritten and checked, never run."""

from __future__ import annotations

from typing import Any, NoReturn

import torch.fx


def _only_rewritten(name: str) -> NoReturn:
    raise RuntimeError(f"{name}: a schedule's FX graph is not executable; run the Schedule that to_schedule gives")


def read(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("read")


def reload(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("reload")


def all_gather(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("all_gather")


def written(run: Any, value: str) -> NoReturn:
    """The copy of `value` that a run has made or changed."""
    _only_rewritten("written")


@torch.fx.has_side_effect
def write(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("write")


@torch.fx.has_side_effect
def offload(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("offload")


@torch.fx.has_side_effect
def reduce_scatter(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("reduce_scatter")


@torch.fx.has_side_effect
def run(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("run")


@torch.fx.has_side_effect
def release(*copies: Any, **op: Any) -> NoReturn:
    _only_rewritten("release")


TARGETS = {f.__name__: f for f in (read, reload, all_gather, write, offload, reduce_scatter, run, release)}
