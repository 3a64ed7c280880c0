"""Names as an explanation gives them."""

from __future__ import annotations

import re

_PART = re.compile(r"\[\d+\](?=:|$)")


def whole(name: str) -> str:
    """`l0:state` of `l0[3]:state`: an update works on parts of a unit."""
    return _PART.sub("", name)
