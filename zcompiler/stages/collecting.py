"""What stages do about Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """The garbage collector leaves alone what is there already.

    A stage makes and drops graphs by the thousand nodes, beside a captured model of as many as that many times over,
    which all stays: to go through it again and again took a third of planning. Does nothing where somebody else
    has asked for the same, as `unfreeze` would end theirs, too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
