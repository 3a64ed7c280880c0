"""Names and globs choose values alike, as fnmatch does."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from zcompiler.passes.base import chosen_by

NAMES = ("a", "b", "a[0]", "a0", "ab", "*", "")


@pytest.mark.parametrize("only", [(), ("a",), ("a", "a"), ("a*",), ("b", "a[0]"), ("a[[]0]", "b"), ("?",), ("[*]",)])
@pytest.mark.parametrize("keep", [(), ("a",), ("a[0]",), ("*b", "a0")])
def test_what_is_chosen(only: tuple[str, ...], keep: tuple[str, ...]) -> None:
    for name in NAMES:
        wanted = not only or any(fnmatchcase(name, glob) for glob in only)
        assert chosen_by(only, keep)(name) == (wanted and not any(fnmatchcase(name, glob) for glob in keep))
