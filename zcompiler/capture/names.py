"""Names of parameters and modules as the user knows them, from the way Dynamo found them."""

from __future__ import annotations

import re
from collections.abc import Sequence

# L['self'], L['args'][0], G['model'], or a nested function's cell: where Dynamo's path starts.
_ROOT = re.compile(r"""^(?:[LG]\[(?:'[^']*'|"[^"]*")\])(?:\[\d+\]|\.__closure__\[\d+\]\.cell_contents)*""")
_STEP = re.compile(
    r"""\.(?:_modules|_parameters|_buffers)\[['"]([^'"]*)['"]\]|\[['"]?([^'"\]]+)['"]?\]|\.([^.\[\]]+)"""
)


def split_path(source: str) -> tuple[str, tuple[str, ...]]:
    """Dynamo's path of a module, parameter or tensor as (root, steps).

    "L['self']._modules['layers']._modules['0']._parameters['weight']" gives ("L['self']", ("layers", "0", "weight")).
    """
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
        prefix = _clean(root) if len(roots) > 1 or not steps else ""
        name = ".".join(part for part in (prefix, *map(_clean, steps)) if part)
        names.append(name or "value")
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[i] = f"{name}.{seen[name]}"
    return names


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_")
