"""Pieces of values: how a graph says that a region uses a part of a tensor, or makes a part of one.

`piece` and `joined` are nodes in which nothing runs. A region that uses a piece gets a view of the whole; a region that
makes a part of something joined hands it over, to be put in its place, before the next part is made. So a whole exists
once and never beside a copy of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.fx


@dataclass(frozen=True, slots=True)
class Tile:
    """`length` rows from `start` on of a parameter (Dynamo's input `position`), number `index`; what a region gathers
    of it. A row is all that one index of the first dimension leads to; `first` is its first element."""

    position: int
    name: str
    index: int
    start: int
    length: int
    first: int


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` of the value `whole` along `axis`, from `start` on."""

    whole: str
    axis: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Joined:
    """A value made of parts, each the output of a region: one behind the other along `axis`, where they come to `size`,
    or their sum (None)."""

    parts: tuple[str, ...]
    axis: int | None
    starts: tuple[int, ...] = ()
    size: int = 0


def piece(whole: torch.Tensor, axis: int, start: int, length: int) -> torch.Tensor:
    raise AssertionError("a piece is a view that the runtime makes")


def joined(parts: Sequence[torch.Tensor], axis: int | None) -> torch.Tensor:
    raise AssertionError("parts are joined by the runtime")


def is_boundary(node: torch.fx.Node) -> bool:
    """Whether the node stands between regions and is computed in none."""
    return node.target in (piece, joined)


def add_piece(graph: torch.fx.Graph, whole: torch.fx.Node, axis: int, start: int, length: int) -> torch.fx.Node:
    # Its name says of what it is a piece, in forward and backward alike: a piece of a parameter is known by its name.
    node = graph.create_node("call_function", piece, (whole, axis, start, length), name=f"{whole.name}_from_{start}")
    node.meta = {"val": whole.meta["val"].narrow(axis, start, length)}
    return node


def add_joined(
    graph: torch.fx.Graph, parts: Sequence[torch.fx.Node], axis: int | None, like: torch.Tensor
) -> torch.fx.Node:
    """A value made of parts, of which `like` is the fake tensor."""
    node = graph.call_function(joined, (tuple(parts), axis))
    node.meta = {"val": like}
    return node


def described(nodes: Sequence[torch.fx.Node]) -> tuple[dict[str, Piece], dict[str, Joined]]:
    """The pieces and what is joined among the nodes, by name."""
    pieces: dict[str, Piece] = {}
    joins: dict[str, Joined] = {}
    for node in nodes:
        if node.target is piece:
            whole, axis, start, length = node.args
            pieces[node.name] = Piece(whole.name, axis, start, length)  # type: ignore[union-attr,arg-type]
        elif node.target is joined:
            parts, axis = node.args
            starts, end = [], 0
            for part in parts if axis is not None else ():  # type: ignore[union-attr]
                starts.append(end)
                end += part.meta["val"].shape[axis]  # type: ignore[union-attr]
            joins[node.name] = Joined(tuple(p.name for p in parts), axis, tuple(starts), end)  # type: ignore[union-attr,arg-type,misc]
    return pieces, joins
