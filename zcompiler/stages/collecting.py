"""What stages do about Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# How many new objects there are between two looks at them, and so on, as for gc.set_threshold. What is captured fills
# the heap, which hardly gets smaller again: garbage of it has to go soon. What planning makes is small.
CAPTURING = (7_000, 2, 3)
PLANNING = (20_000, 10, 10)


@contextmanager
def only_new_garbage(seldom: tuple[int, int, int]) -> Iterator[None]:
    """The garbage collector leaves alone what is there already, and looks at what is new as `seldom` as that.

    A stage makes and drops graphs by the thousand nodes, beside a captured model of as many as that many times over,
    which all stays: to go through it again and again took a third of planning, and to look at each graph as it was made
    another tenth. Does nothing where somebody else has asked for the same, as `unfreeze` would end theirs, too.
    """
    if gc.get_freeze_count():
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    if 0 < before[0] < seldom[0]:  # 0: the user's program collects by itself
        gc.set_threshold(*seldom)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
