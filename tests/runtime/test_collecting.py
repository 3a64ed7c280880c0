"""While a stage works the garbage collector leaves alone what was there before, and not afterwards."""

from __future__ import annotations

import gc

import pytest

from zcompiler.stages.collecting import PLANNING, only_new_garbage


def test_what_was_there_is_frozen_until_a_stage_ends_or_fails() -> None:
    with pytest.raises(KeyError), only_new_garbage(PLANNING):
        assert gc.get_freeze_count() > 0
        with only_new_garbage(PLANNING):
            pass
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_user_froze_stays_so() -> None:
    gc.freeze()
    try:
        with only_new_garbage(PLANNING):
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("threshold", "inside"), [(700, PLANNING), (0, (0, 11, 12)), (10**6, (10**6, 11, 12))])
def test_what_is_new_is_looked_at_less_often_and_never_where_the_user_wants_that(
    threshold: int, inside: tuple[int, int, int]
) -> None:
    before = gc.get_threshold()
    gc.set_threshold(threshold, 11, 12)
    try:
        with only_new_garbage(PLANNING):
            assert gc.get_threshold() == inside
        assert gc.get_threshold() == (threshold, 11, 12)
    finally:
        gc.set_threshold(*before)
