"""Which rows of a parameter its tiles are, as the user's option asks for."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from zcompiler.capture.pieces import Tile
from zcompiler.layout import ALIGNMENT
from zcompiler.options import OptionError


@dataclass(frozen=True, slots=True)
class Tiling:
    """One parameter's name and tiles. `title` names the regions: title/0, title/1, ..."""

    name: str
    title: str
    tiles: tuple[Tile, ...]


def choose_tiles(
    rules: Sequence[tuple[str, int]], names: Mapping[int, str], inputs: Sequence[torch.Tensor], known: set[str]
) -> dict[int, Tiling]:
    """The tiles of each parameter that the user wants tiled, by position. `names` by position; `rules` are globs and
    factors, of which the first that fits counts. OptionError when a glob has fitted nothing, here or, as `known` says,
    in an earlier graph."""
    found: dict[int, Tiling] = {}
    for position, name in names.items():
        fitting = [rule for rule in rules if is_part_of(name, rule[0])]
        known.update(glob for glob, _ in fitting)
        if fitting and (made := tiling(position, name, inputs[position], fitting[0][1])) is not None:
            found[position] = made
    unknown = [glob for glob, _ in rules if glob not in known]
    if names and unknown:
        close = difflib.get_close_matches(unknown[0], names.values(), n=1, cutoff=0)
        raise OptionError(
            f'option "tile": {", ".join(map(repr, unknown))} is the name of no module or parameter of this graph '
            f"(which has {len(names)}, such as {close[0]}). A model that torch compiles in several graphs needs a "
            "glob that fits some parameter of the first, too"
        )
    return found


def is_part_of(parameter: str, glob: str) -> bool:
    """Whether the glob is the name of the parameter or of a module that it is in."""
    steps = parameter.split(".")
    return any(fnmatchcase(".".join(steps[:i]), glob) for i in range(1, len(steps) + 1))


def tiling(position: int, name: str, value: torch.Tensor, factor: int) -> Tiling | None:
    """`value` in `factor` tiles that differ by one block of rows at most; in fewer if it has not as many blocks. None
    if it cannot be tiled.

    A block is the least that begins where direct I/O may begin, also in a copy of it in 16 bits.
    """
    if value.dim() < 2 or not value.is_contiguous() or not value.numel():
        return None
    rows, row = value.shape[0], value[0].numel()
    alignment = ALIGNMENT // min(value.element_size(), 2)
    block = alignment // math.gcd(alignment, row)
    blocks = -(-rows // block)
    tiles, start = [], 0
    count = min(factor, blocks)
    for i in range(count):
        length = min((blocks // count + (i < blocks % count)) * block, rows - start)
        tiles.append(Tile(position, name, i, start, length, start * row))
        start += length
    return Tiling(name, name.removesuffix(".weight"), tuple(tiles)) if count > 1 else None
