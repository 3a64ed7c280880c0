"""Parameters that a graph uses only after a cast to 16 bits (autocast): the same regions over the cast copies.

A region that takes the copy as its input computes what it did, bit for bit, and half the bytes are gathered for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.fx

from zcompiler.capture.captured import Captured
from zcompiler.capture.cut import CASTS, Cut, CutRegion
from zcompiler.torch_compat.graphs import module_of

_LOW = (torch.bfloat16, torch.float16)


def with_low_parameters(captured: Captured, but: Callable[[int], bool] = lambda position: False) -> Captured:
    """The graph with the cast copy in the place of each parameter of which every use, in both phases, is a cast to one
    and the same narrower type; not of those at the Dynamo positions `but`. Where a parameter is a result, the caller
    gets the parameter in either form."""
    low = {position: dtype for position, dtype in _low_parameters(captured).items() if not but(position)}
    if not low:
        return captured
    forward = _with_low(captured, captured.forward, low)
    backward = _with_low(captured, captured.backward, low) if captured.backward is not None else None
    return replace(captured, forward=forward, backward=backward, low=low)


def _low_parameters(captured: Captured) -> dict[int, torch.dtype]:
    """Dynamo position -> the type in which it is used."""
    wanted: dict[int, set[torch.dtype | None]] = {}
    for cut in filter(None, (captured.forward, captured.backward)):
        for region in cut.regions:
            for position, node in _parameters(captured, region):
                wanted.setdefault(position, set()).update(_cast_to(user, node) for user in node.users)
    return {p: dtype for p, dtypes in wanted.items() if len(dtypes) == 1 and (dtype := next(iter(dtypes))) is not None}


def _parameters(captured: Captured, region: CutRegion) -> Iterator[tuple[int, torch.fx.Node]]:
    for name, node in zip(region.inputs, region.module.graph.find_nodes(op="placeholder"), strict=True):
        if (parameter := captured.parameter(name)) is not None:
            yield parameter.position, node


def _cast_to(user: torch.fx.Node, parameter: torch.fx.Node) -> torch.dtype | None:
    """To which narrower type this use casts the parameter, if it does nothing else; not if the cast leaves the region,
    which may not hand on what was gathered for it."""
    if str(user.target) not in CASTS or any(u.op == "output" for u in user.users):
        return None
    cast, value = user.meta["val"], parameter.meta["val"]
    alike = (cast.stride(), cast.device, cast.layout) == (value.stride(), value.device, value.layout)
    narrower = value.dtype.is_floating_point and value.dtype.itemsize > 2 and cast.dtype in _LOW
    return cast.dtype if alike and narrower else None


def _with_low(captured: Captured, cut: Cut, low: dict[int, torch.dtype]) -> Cut:
    return replace(cut, regions=tuple(_region_with_low(captured, region, low) for region in cut.regions))


def _region_with_low(captured: Captured, region: CutRegion, low: dict[int, torch.dtype]) -> CutRegion:
    cast = {node: list(node.users) for position, node in _parameters(captured, region) if position in low}
    if not cast:
        return region
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    gone = {user: node for node, users in cast.items() for user in users}
    for node in region.module.graph.nodes:
        if node in gone:
            copies[node] = copies[gone[node]]
            continue
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        if node in cast:
            copies[node].meta = {"val": cast[node][0].meta["val"]}
    return replace(region, module=module_of(region.module, graph))
