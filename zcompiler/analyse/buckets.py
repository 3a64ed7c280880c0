"""Parameters as buckets: those of one unit that the same regions use, gathered, moved and released together.

Those that are used in a narrower type than they rest in (autocast) are buckets of their own, UNIT:bf16. So are the rows
of a parameter that a tile uses, NAME/0, NAME/1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from zcompiler.analyse.sizes import common_dtype, short_name
from zcompiler.capture.captured import Captured
from zcompiler.capture.pieces import Tile
from zcompiler.layout import layout
from zcompiler.torch_compat.sizes import size_hint


@dataclass(frozen=True, slots=True)
class Bucket:
    """`positions` are Dynamo's input positions; `sizes` exact bytes; `offsets` and `nbytes` with padding.

    `low` is the type to which they are cast before they are used, if they are; the bytes and `dtype` are then those of
    the cast copies. `whole` and `resting`: padded bytes and dtype of the parameters themselves and of their gradients.
    With a `tile` it holds some rows of one parameter; `has_tiles`: other buckets hold the rows of its one parameter.
    """

    name: str
    positions: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int
    dtype: str
    whole: int
    resting: str
    low: torch.dtype | None = None
    tile: Tile | None = None
    has_tiles: bool = False

    @property
    def rests_as(self) -> str:
        """The name under which its parameters rest."""
        return self.tile.name if self.tile is not None else self.name.partition(":")[0]


def buckets_of(
    captured: Captured, inputs: Sequence[object], decided: Callable[[int], Hashable] = lambda position: None
) -> tuple[Bucket, ...]:
    """The buckets of a graph, in the order in which forward first uses them.

    A parameter that several regions use (a tied embedding) gets a bucket of its own, so that none of them gathers
    what it does not need. `inputs` are Dynamo's, real or fake. `decided` says of a position what earlier graphs have
    decided about it: what they put in different places is not moved together.
    """
    users: dict[tuple[int, Tile | None], list[int]] = {}
    for index, region in enumerate(captured.forward.regions):
        for name in region.inputs:
            if (parameter := captured.parameter(name)) is not None:
                users.setdefault((parameter.position, captured.tiles.get(name)), []).append(index)
    for region in captured.backward.regions if captured.backward else ():
        for name in region.inputs:
            if (parameter := captured.parameter(name)) is not None:
                users.setdefault((parameter.position, captured.tiles.get(name)), [len(captured.forward.regions)])
    tiled = {position for position, tile in users if tile is not None}
    groups: dict[tuple[str, tuple[int, ...], object, torch.dtype | None, Hashable], list[tuple[int, Tile | None]]] = {}
    for (position, tile), regions in sorted(users.items(), key=lambda item: (item[1][0], item[0][0])):
        unit = captured.inputs[position].unit or ""
        alone = (position, tile) if len(regions) > 1 or position in tiled else None
        key = unit, tuple(regions), alone, captured.low.get(position), decided(position)
        groups.setdefault(key, []).append((position, tile))
    seen: dict[str, int] = {}
    found = []
    for (unit, _, _, low, _), members in groups.items():
        positions, tile = tuple(position for position, _ in members), members[0][1]
        name = unit if tile is None else f"{tile.name}/{tile.index}"
        name = f"{name}:{short_name(low)}" if low is not None else name
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}:{seen[name]}"
        tensors = [t for p in positions if isinstance(t := inputs[p], torch.Tensor)]
        counts = [size_hint(t.numel()) // (t.shape[0] if tile else 1) * (tile.length if tile else 1) for t in tensors]
        whole = sizes = tuple(n * t.element_size() for n, t in zip(counts, tensors, strict=True))
        dtype = resting = common_dtype(tensors)
        if low is not None:
            dtype, sizes = short_name(low), tuple(n * low.itemsize for n in counts)
        offsets, total = layout(sizes)
        padded = layout(whole)[1]
        has_tiles = tile is None and not tiled.isdisjoint(positions)
        found.append(Bucket(name, positions, sizes, offsets, total, dtype, padded, resting, low, tile, has_tiles))
    return tuple(found)
