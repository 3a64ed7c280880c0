"""Names of parameters and modules as the user knows them, from the way Dynamo found them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

# Words that mean something in the text of a schedule; a layer or an argument may be called like one.
RESERVED = frozenset({"reads", "writes", "after", "for"})

# L['self'], L['args'][0], G['model'], or a nested function's cell: where Dynamo's path starts.
_ROOT = re.compile(r"""^(?:[LG]\[(?:'[^']*'|"[^"]*")\])(?:\[\d+\]|\.__closure__\[\d+\]\.cell_contents)*""")
_QUOTED = r"""(?:'([^']*)'|"([^"]*)")"""
_STEP = re.compile(rf"""\.(?:_modules|_parameters|_buffers)\[{_QUOTED}\]|\[(?:{_QUOTED}|([^'"\]]+))\]|\.([^.\[\]]+)""")
# How Dynamo writes the way to a module whose name is no identifier: the innermost one of a nested path.
_GETATTR = re.compile(r"""getattr\(((?:(?!getattr\().)*), ('[^']*'|"[^"]*")\)""")


def split_path(source: str) -> tuple[str, tuple[str, ...]]:
    """Dynamo's path of a module, parameter or tensor as (root, steps).

    "L['self']._modules['layers']._modules['0']._parameters['weight']" gives ("L['self']", ("layers", "0", "weight")).
    """
    replaced = 1
    while replaced:
        source, replaced = _GETATTR.subn(r"\1._modules[\2]", source)
    root = _ROOT.match(source)
    start = root.end() if root else 0
    steps = tuple(next(part for part in found if part) for found in _STEP.findall(source[start:]) if any(found))
    return source[:start], steps


def readable(sources: Sequence[str]) -> list[str]:
    """A unique dotted name for each Dynamo path; the root is left out while one root is enough to tell them apart."""
    split = [split_path(source) for source in sources]
    roots = {root for root, _ in split}
    names: list[str] = []
    for root, steps in split:
        prefix = clean(root) if len(roots) > 1 or not steps else ""
        name = ".".join(part for part in (prefix, *map(clean, steps)) if part)
        names.append(name or "value")
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[i] = f"{name}.{seen[name]}"
    return names


def clean(step: str) -> str:
    """One step of a path as a schedule can write it; may be empty."""
    text = re.sub(r"[^A-Za-z0-9_.-]+", "_", step).strip("_")
    return f"{text}_" if text in RESERVED else text


def numbered(wanted: str, taken: Counter[str]) -> str:
    """`wanted`, or with a number behind it if it is taken; it then is."""
    name = wanted
    while name in taken:  # the name of a unit's second bucket may be that of a second model's unit
        taken[wanted] += 1
        name = f"{wanted}:{taken[wanted]}"
    taken[name] = 1
    return name
