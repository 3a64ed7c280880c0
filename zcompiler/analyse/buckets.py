"""Parameters as buckets: those of one unit that the same regions use, gathered, moved and released together.

Those that are used in a narrower type than they rest in (autocast) are buckets of their own, UNIT:bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from zcompiler.analyse.sizes import common_dtype, nbytes, short_name
from zcompiler.capture.captured import Captured
from zcompiler.layout import layout
from zcompiler.torch_compat import size_hint


@dataclass(frozen=True, slots=True)
class Bucket:
    """`positions` are Dynamo's input positions; `sizes` exact bytes; `offsets` and `nbytes` with padding.

    `low` is the type to which they are cast before they are used, if they are; the bytes and `dtype` are then those of
    the cast copies. `whole` and `resting`: padded bytes and dtype of the parameters themselves and of their gradients.
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


def buckets_of(
    captured: Captured, inputs: Sequence[object], decided: Callable[[int], Hashable] = lambda position: None
) -> tuple[Bucket, ...]:
    """The buckets of a graph, in the order in which forward first uses them.

    A parameter that several regions use (a tied embedding) gets a bucket of its own, so that none of them gathers
    what it does not need. `inputs` are Dynamo's, real or fake. `decided` says of a position what earlier graphs have
    decided about it: what they put in different places is not moved together.
    """
    users: dict[int, list[int]] = {}
    for index, region in enumerate(captured.forward.regions):
        for name in region.inputs:
            if (parameter := captured.parameter(name)) is not None:
                users.setdefault(parameter.position, []).append(index)
    for region in captured.backward.regions if captured.backward else ():
        for name in region.inputs:
            if (parameter := captured.parameter(name)) is not None:
                users.setdefault(parameter.position, [len(captured.forward.regions)])
    groups: dict[tuple[str, tuple[int, ...], int, torch.dtype | None, Hashable], list[int]] = {}
    for position, regions in sorted(users.items(), key=lambda item: (item[1][0], item[0])):
        unit = captured.inputs[position].unit or ""
        alone = position if len(regions) > 1 else -1
        key = unit, tuple(regions), alone, captured.low.get(position), decided(position)
        groups.setdefault(key, []).append(position)
    seen: dict[str, int] = {}
    found = []
    for (unit, _, _, low, _), positions in groups.items():
        name = f"{unit}:{short_name(low)}" if low is not None else unit
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}:{seen[name]}"
        tensors = [t for p in positions if isinstance(t := inputs[p], torch.Tensor)]
        whole = sizes = tuple(nbytes(t) for t in tensors)
        dtype = resting = common_dtype(tensors)
        if low is not None:
            dtype, sizes = short_name(low), tuple(size_hint(t.numel()) * low.itemsize for t in tensors)
        offsets, total = layout(sizes)
        found.append(Bucket(name, tuple(positions), sizes, offsets, total, dtype, layout(whole)[1], resting, low))
    return tuple(found)
