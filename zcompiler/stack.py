"""Room on Python's stack for what takes long.

CPython keeps the frames of calls in chunks of 16 KiB. A call that does not fit into the last one asks the system for
another and gives it back as it returns, so a loop that happens to stand at the end of a chunk does this for each call
in it: planning a deep model took twice as long in one place as in another, `memory` of a schedule ten times. Where that
is depends on everybody who is on the stack. A frame larger than a chunk gets one of the next power of two, and what is
left of it is for whoever is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

SLOTS = 45_000  # of 8 bytes: in a chunk of 512 KiB that leaves some 150, or 500 calls


def with_room(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """What the function gives back, called where the calls that it makes share one chunk of the stack."""
    return _call(function, args, kwargs)


def _call(function: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    return function(*args, **kwargs)


_call.__code__ = _call.__code__.replace(co_stacksize=SLOTS)
