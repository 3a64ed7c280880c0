"""Sizes, rates and times as text, exactly: `24GiB`, `1.3GB/s`, `85GFLOP/s`, `80us`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from types import MappingProxyType


@dataclass(frozen=True)
class Units:
    """Units of one kind of quantity, as multiples of its base unit; `what` and `sample` are for errors."""

    what: str
    sample: str
    sizes: Mapping[str, Decimal]


def _decimal(unit: str) -> Mapping[str, Decimal]:
    return MappingProxyType({prefix + unit: Decimal(1000) ** power for power, prefix in enumerate(("", *"KMGTP"))})


_BYTES = {f"{p}{b}": Decimal(n) ** e for e, p in enumerate("KMGT", 1) for b, n in (("B", 1000), ("iB", 1024))}
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}

SIZES = Units("a size", "24GiB", MappingProxyType({"B": Decimal(1)} | _BYTES))
BANDWIDTHS = Units("a bandwidth", "1.3GB/s", _decimal("B/s"))
FLOP_RATES = Units("a rate", "85GFLOP/s", _decimal("FLOP/s"))
TIMES = Units("a time", "80us", MappingProxyType(_SECONDS))

_NUMBER = re.compile(r"([0-9]{1,400}(?:\.[0-9]{1,400})?)(.*)", re.DOTALL)
_EXACT = Context(prec=400, traps=[Inexact])  # a float has up to 309 digits before its point


def parse_quantity(text: str, units: Units) -> Fraction | None:
    """The exact number in the base unit; None when `text` is not a number directly followed by one of the units."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units.sizes:
        return None
    return Fraction(match[1]) * Fraction(units.sizes[match[2]])


def format_quantity(value: int | float, units: Units) -> str:
    """The shortest text that `parse_quantity` reads back as exactly `value`, which is finite and not negative."""
    exact = Decimal(repr(value))
    texts = []
    for unit, size in units.sizes.items():
        try:
            number = _EXACT.divide(exact, size)
        except Inexact:
            continue
        texts.append((f"{number.normalize(_EXACT):f}{unit}", number < 1, -size))
    # Of two equally short ones that with no zero in front, then that of the larger unit.
    return min(texts, key=lambda text: (len(text[0]), *text[1:]))[0]


def meant(text: str, units: Units) -> str | None:
    """What `text` would be with its spaces and the case of its unit put right, if that is a quantity."""
    number, unit = re.fullmatch(r"([0-9.]*)(.*)", "".join(text.split()), re.DOTALL).groups()  # type: ignore[union-attr]
    right = number + {known.casefold(): known for known in units.sizes}.get(unit.casefold(), unit)
    return right if parse_quantity(right, units) is not None else None
