"""Parameters as buckets: those of one unit that the same regions use, gathered, moved and released together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zcompiler.analyse.sizes import common_dtype, nbytes
from zcompiler.capture.captured import Captured
from zcompiler.layout import layout


@dataclass(frozen=True, slots=True)
class Bucket:
    """`positions` are Dynamo's input positions; `sizes` exact bytes; `offsets` and `nbytes` with padding."""

    name: str
    positions: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int
    dtype: str


def buckets_of(captured: Captured, inputs: Sequence[object]) -> tuple[Bucket, ...]:
    """The buckets of a graph, in the order in which forward first uses them.

    A parameter that several regions use (a tied embedding) gets a bucket of its own, so that none of them gathers
    what it does not need. `inputs` are Dynamo's, real or fake.
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
    groups: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for position, regions in sorted(users.items(), key=lambda item: (item[1][0], item[0])):
        unit = captured.inputs[position].unit or ""
        alone = position if len(regions) > 1 else -1
        groups.setdefault((unit, tuple(regions), alone), []).append(position)
    seen: dict[str, int] = {}
    found = []
    for (unit, _, _), positions in groups.items():
        seen[unit] = seen.get(unit, 0) + 1
        name = unit if seen[unit] == 1 else f"{unit}:{seen[unit]}"
        tensors = [inputs[p] for p in positions]
        sizes = tuple(nbytes(t) for t in tensors if isinstance(t, torch.Tensor))
        offsets, total = layout(sizes)
        found.append(Bucket(name, tuple(positions), sizes, offsets, total, common_dtype(tensors)))
    return tuple(found)
