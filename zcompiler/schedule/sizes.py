"""Byte counts as exact text: `1536` is `1.5KiB`, `1537` is `1537B`."""

from __future__ import annotations

import re

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
_SIZE = re.compile(r"(\d+)(?:\.(\d{1,2}))?(GiB|MiB|KiB|B)")


def format_bytes(n: int) -> str:
    """The largest unit in which `n` is at least one and needs at most two decimals, exactly."""
    for unit, size in UNITS[:-1]:
        if n >= size and n * 100 % size == 0:
            hundredths = n * 100 // size
            whole, rest = divmod(hundredths, 100)
            return f"{whole}{f'.{rest:02d}'.rstrip('0') if rest else ''}{unit}"
    return f"{n}B"


def parse_bytes(text: str) -> int:
    """Bytes of `1.25GiB`, `512B`. ValueError when it is no size or not a whole number of bytes."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size: write a number and one of B, KiB, MiB, GiB, as in 1.25GiB")
    whole, decimals, unit = match.groups()
    size = dict(UNITS)[unit]
    hundredths = int(whole) * 100 + int((decimals or "0").ljust(2, "0"))
    if hundredths * size % 100:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return hundredths * size // 100
