"""Errors that the user can act on: what, where, the numbers, the remedy, in one message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZinfError(RuntimeError):
    """Anything zinf refuses or cannot do."""


class BadInput(ZinfError):
    """A file or argument of a command cannot be used: which, why, and what would do."""


class DoesNotFit(ZinfError):
    """No plan stays inside the memory limit; the message says the smallest limit that would do, `least`, in bytes."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least

    @property
    def in_mib(self) -> int:
        """`least` in whole MiB, as messages say it; in bytes."""
        return -(-self.least >> 20) << 20

    def __reduce__(self) -> tuple[type[DoesNotFit], tuple[str, int]]:
        return type(self), (str(self), self.least)


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """A hint to put behind a word that is none of `words`: the one closest to it, or nothing."""
    if not isinstance(word, str):
        return ""
    folded = {known.casefold(): known for known in words}
    close = difflib.get_close_matches(word.casefold(), folded, n=1)
    return f' (did you mean "{folded[close[0]]}"?)' if close else ""
