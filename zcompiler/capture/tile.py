"""tile-operators: splits matmuls with a large parameter into tiles, each of which needs only some rows of it.

Works on aten nodes of a forward or backward graph, before regions are cut: each tile becomes a region of its own. Tiles
are cut along the first dimension of the parameter as it is stored, since then each is one range of the store. Where
that is the dimension a matmul sums over, partial sums are added up, else the results are put side by side; the
gradient of the parameter is made in the same slices.

Left as it is: whatever is no mm, addmm or bmm of the parameter, seen through transposes and casts at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from zcompiler.capture.axes import again, axis_above, axis_below, call, is_pure_view
from zcompiler.capture.pieces import Tile, add_joined, add_piece
from zcompiler.capture.tiling import Tiling
from zcompiler.torch_compat.graphs import module_of

aten = torch.ops.aten
# For each matmul the position of its two operands, and the axes of these and of the result by letter.
_MATMULS: Mapping[Any, tuple[int, tuple[str, str, str]]] = {
    aten.mm.default: (0, ("mk", "kn", "mn")),
    aten.addmm.default: (1, ("mk", "kn", "mn")),
    aten.bmm.default: (0, ("bmk", "bkn", "bmn")),
}
_PRODUCT: Mapping[Any, Any] = {aten.addmm.default: aten.mm.default}


def copied(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with the same names and fake tensors, to be changed."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    output = next(iter(graph_module.graph.find_nodes(op="output")))
    results = graph.graph_copy(graph_module.graph, copies)
    graph.output(results).meta = dict(output.meta)
    return module_of(graph_module, graph)


@dataclass(frozen=True, slots=True)
class _Use:
    """A matmul that takes a parameter as its operand 0 or 1, with its rows as `axis`; the views between, each with
    where the rows are behind it."""

    placeholder: torch.fx.Node
    matmul: torch.fx.Node
    operand: int
    axis: int
    path: tuple[tuple[torch.fx.Node, int], ...]


class TileOperators:
    """The pass over one graph. `owner` says of each node it makes which region computes it; `tiles` which placeholder
    is which rows of which parameter."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.owner: dict[torch.fx.Node, str] = {}
        self.tiles: dict[torch.fx.Node, Tile] = {}
        self._handles: dict[tuple[int, int], torch.fx.Node] = {}
        self._parameters: frozenset[torch.fx.Node] = frozenset()

    def apply(
        self,
        tilings: Mapping[torch.fx.Node, Tiling],
        parameters: frozenset[torch.fx.Node],
        gradients: Mapping[int, Tiling],
    ) -> None:
        """`tilings` by placeholder; `parameters` are the placeholders of all parameters; `gradients` by output."""
        self._parameters = parameters
        for placeholder, tiling in tilings.items():
            for use in _uses(placeholder, placeholder, 0, ()):
                self._tile(use, tiling)
        results: Any = next(iter(self.graph.find_nodes(op="output"))).args[0]
        for output, tiling in gradients.items():
            if isinstance(results[output], torch.fx.Node):
                self._tile_gradient(results[output], tiling)

    def _tile(self, use: _Use, tiling: Tiling) -> None:
        matmul, path = use.matmul, use.path
        first, letters = _MATMULS[matmul.target]
        operands: Any = matmul.args[first : first + 2]
        letter, other = letters[use.operand][use.axis], operands[1 - use.operand]
        cut = _axis_of(letter, letters[1 - use.operand])
        along = _axis_of(letter, letters[2])
        if matmul in self.owner or matmul.kwargs or not matmul.meta["val"].is_contiguous():
            return
        if _base(other, None, casts=True)[0] is use.placeholder or self._is_parameter(other, cut):
            return
        with self.graph.inserting_before(matmul):
            bias = self._bias(matmul, along) if first else None
            parts = []
            for tile in tiling.tiles:
                rows = self.rows(use.placeholder, tile)
                for view, axis in path:
                    rows = self._own(again(view, rows, axis, tile.length), tiling, tile)
                rest = self._operand(other, cut, tiling, tile)
                args: tuple[torch.fx.Node, ...] = (rows, rest) if use.operand == 0 else (rest, rows)
                target = _PRODUCT.get(matmul.target, matmul.target)
                if bias is not None and along is not None:
                    args, target = (self._bias_piece(bias, matmul, along, tile), *args), matmul.target
                parts.append(self._own(call(self.graph, target, args, {}, matmul), tiling, tile))
            whole = add_joined(self.graph, parts, along, matmul.meta["val"])
            if bias is not None and along is None:
                whole = call(self.graph, aten.add.Tensor, (whole, bias), {}, matmul)
        replace_node(matmul, whole)

    def _tile_gradient(self, result: torch.fx.Node, tiling: Tiling) -> None:
        node, axis, path = result, 0, []
        while len(node.users) == 1 and (above := axis_above(node, axis)) is not None:
            path.append((node, axis))
            node, axis = node.all_input_nodes[0], above
        first, letters = _MATMULS.get(node.target, (1, ("", "", "")))
        operands = node.all_input_nodes
        if first or node in self.owner or node.kwargs or len(node.users) != 1 or len(operands) != 2:
            return
        cuts = [_axis_of(letters[2][axis], own) for own in letters[:2]]
        if any(self._is_parameter(n, cut) for n, cut in zip(operands, cuts, strict=True)):
            return
        with self.graph.inserting_before(node):
            parts = []
            for tile in tiling.tiles:
                pair = tuple(self._operand(n, cut, tiling, tile) for n, cut in zip(operands, cuts, strict=True))
                part = self._own(call(self.graph, node.target, pair, {}, node), tiling, tile)
                for view, axis in reversed(path):
                    part = self._own(again(view, part, axis, tile.length), tiling, tile)
                parts.append(part)
            whole = add_joined(self.graph, parts, 0, result.meta["val"])
        replace_node(result, whole)

    def _is_parameter(self, operand: torch.fx.Node, cut: int | None) -> bool:
        """Whether a piece of a parameter would be wanted, which no region can have."""
        return cut is not None and _base(operand, cut)[0] in self._parameters

    def _operand(self, node: torch.fx.Node, axis: int | None, tiling: Tiling, tile: Tile) -> torch.fx.Node:
        """An operand of a tile: a tile's own views of what other regions make, or of the tile's piece of it along
        `axis`, so that equal tiles are equal regions."""
        base, path = _base(node, axis)
        if axis is not None:
            base_axis = path[-1][2] if path else axis
            assert base_axis is not None
            base = add_piece(self.graph, base, base_axis, tile.start, tile.length)
        for view, at, _ in reversed(path):
            base = self._own(again(view, base, at, tile.length), tiling, tile)
        return base

    def rows_of(self, tilings: Mapping[torch.fx.Node, Tiling]) -> Callable[[torch.fx.Node, Tile], torch.fx.Node]:
        """How to get the rows of a weight that a tile takes: for these placeholders ones of their own, else a piece."""

        def rows(weight: torch.fx.Node, tile: Tile) -> torch.fx.Node:
            if weight in tilings:
                return self.rows(weight, tile)
            return add_piece(self.graph, weight, 0, tile.start, tile.length)

        return rows

    def rows(self, placeholder: torch.fx.Node, tile: Tile) -> torch.fx.Node:
        """The placeholder of a tile of a parameter."""
        key = (tile.position, tile.index)
        if key not in self._handles:
            with self.graph.inserting_after(placeholder):
                node = self.graph.placeholder(f"{placeholder.name}_rows_{tile.index}")
            node.meta = {"val": placeholder.meta["val"].narrow(0, tile.start, tile.length)}
            self._handles[key] = node
            self.tiles[node] = tile
        return self._handles[key]

    def _bias(self, matmul: torch.fx.Node, along: int | None) -> torch.fx.Node:
        """The bias as something that tiles can take a piece of: a parameter is copied first, for it would be gathered
        anew for each tile, and it is small."""
        bias = matmul.all_input_nodes[0]
        if along is not None and _base(bias, None, casts=True)[0] in self._parameters:
            return call(self.graph, aten.clone.default, (bias,), {}, matmul)
        return bias

    def _bias_piece(self, bias: torch.fx.Node, matmul: torch.fx.Node, along: int, tile: Tile) -> torch.fx.Node:
        value, out = bias.meta["val"], matmul.meta["val"]
        axis = along - (out.dim() - value.dim())
        if axis < 0 or value.shape[axis] == 1:
            return bias
        return add_piece(self.graph, bias, axis, tile.start, tile.length)

    def _own(self, node: torch.fx.Node, tiling: Tiling, tile: Tile) -> torch.fx.Node:
        self.owner[node] = f"{tiling.title}/{tile.index}"
        return node


def _uses(
    placeholder: torch.fx.Node, node: torch.fx.Node, axis: int, path: tuple[tuple[torch.fx.Node, int], ...]
) -> list[_Use]:
    """The matmuls that take the parameter, `axis` of the node being its rows."""
    found = []
    for user in node.users:
        if user.target in _MATMULS:
            first, _ = _MATMULS[user.target]
            if list(user.args).count(node) == 1 and (operand := user.args.index(node) - first) >= 0:
                found.append(_Use(placeholder, user, operand, axis, path))
        elif (below := axis_below(user, axis)) is not None:
            found += _uses(placeholder, user, below, (*path, (user, below)))
    return found


def _axis_of(letter: str, letters: str) -> int | None:
    return letters.index(letter) if letter in letters else None


def _base(
    node: torch.fx.Node, axis: int | None, casts: bool = False
) -> tuple[torch.fx.Node, list[tuple[torch.fx.Node, int | None, int | None]]]:
    """What the node is a view of, and the views between, last first, each with where `axis` is in its result and in
    its input. With an axis, as far up as that can be told."""
    path: list[tuple[torch.fx.Node, int | None, int | None]] = []
    while node.op == "call_function":
        above = axis_above(node, axis) if axis is not None else None
        if axis is not None and above is None:
            break
        if not (is_pure_view(node) or (casts and above is None and axis is None and _is_cast(node))):
            break
        path.append((node, axis, above))
        node, axis = node.all_input_nodes[0], above
    return node, path


def _is_cast(node: torch.fx.Node) -> bool:
    return not is_pure_view(node) and axis_below(node, 0) is not None


def replace_node(node: torch.fx.Node, by: torch.fx.Node) -> None:
    """Put `by` in the place of the node, under its name, by which backward knows what forward saves; and remove what
    nobody uses any more."""
    node.replace_all_uses_with(by)
    by.name = node.name
    unused = [node]
    while unused:
        gone = unused.pop()
        if gone.op == "call_function" and not gone.users:
            inputs = gone.all_input_nodes
            gone.graph.erase_node(gone)
            unused += inputs
