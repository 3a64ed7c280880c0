"""While a stage works the garbage collector leaves alone what was there before, and not afterwards."""

from __future__ import annotations

import gc

import pytest

from zcompiler.stages.collecting import only_new_garbage


def test_what_was_there_is_frozen_until_a_stage_ends_or_fails() -> None:
    with pytest.raises(KeyError), only_new_garbage():
        assert gc.get_freeze_count() > 0
        with only_new_garbage():
            pass
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_user_froze_stays_so() -> None:
    gc.freeze()
    try:
        with only_new_garbage():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
