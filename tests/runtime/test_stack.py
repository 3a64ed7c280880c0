"""Calls share a chunk of Python's stack, wherever the one that asks for it stands."""

from __future__ import annotations

import resource

import pytest

from zcompiler.stack import with_room

CALLS = 500


def called() -> None:
    return


def new_pages(depth: int) -> int:
    """How many pages are touched for the first time while so many calls are made so deep in the stack."""
    if depth:
        return new_pages(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        called()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def at(depth: int, measure_at: int) -> int:
    return at(depth - 1, measure_at) if depth else with_room(new_pages, measure_at)


def test_no_depth_costs_a_page_for_each_call() -> None:
    assert max(at(depth, 0) for depth in range(80)) < CALLS // 10
    assert max(with_room(new_pages, depth) for depth in range(300)) < CALLS // 10


def test_what_a_function_gives_and_raises_comes_through() -> None:
    assert with_room(divmod, 7, 2) == (3, 1) and with_room(sorted, [1, 2], reverse=True) == [2, 1]
    assert with_room(dict, function=1) == {"function": 1}  # a model may have an argument of that name
    with pytest.raises(ZeroDivisionError):
        with_room(divmod, 1, 0)
