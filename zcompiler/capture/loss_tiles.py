"""Takes a projection and its cross-entropy (`loss_op.py`) apart in tiles, so that only a tile's logits exist at a time.

Works on aten nodes of a forward or backward graph, as `tile.py` does. Tiles are rows of the weight: classes. Forward
finds each tile's greatest logit, its sum of exp(logit - greatest), and the logit of the label where the tile has it;
one region puts these together (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"). Backward
computes a tile's logits again, makes their gradient, and at once of that the gradient of the tile's rows, and the
tile's part of the gradient of the input, which is a sum over tiles.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

import torch
import torch.fx

from zcompiler.capture.axes import call
from zcompiler.capture.loss_numbers import Tensors, finish_forward, tile_backward, tile_forward, token_gradients
from zcompiler.capture.pieces import Tile, add_joined, add_piece
from zcompiler.capture.tile import replace_node
from zcompiler.capture.tiling import Tiling
from zcompiler.torch_compat.compiling import trace
from zcompiler.torch_compat.nodes import arguments_of, operator_name

Rows = Callable[[torch.fx.Node, Tile], torch.fx.Node]


def has_losses(graph: torch.fx.Graph) -> bool:
    return any(operator_name(node).startswith("projected_loss") for node in graph.nodes)


def expand_losses(
    graph: torch.fx.Graph,
    tilings: Mapping[int, Tiling],
    rows: Rows,
    owner: dict[torch.fx.Node, str],
    inductor: bool,
) -> None:
    """Expand every loss in the graph. `tilings` by the position that the operator names; `rows` gives the node for a
    tile of a weight; `owner` is told which tile computes each node. `inductor`: use Inductor's decompositions."""
    for name, expand in (("projected_loss", _expand_forward), ("projected_loss_backward", _expand_backward)):
        for node in [n for n in graph.nodes if operator_name(n) == name]:
            with graph.inserting_before(node):
                expand(_Loss(graph, node, tilings, rows, owner, inductor))


@dataclass(frozen=True, slots=True)
class _Loss:
    """One loss that is being expanded."""

    graph: torch.fx.Graph
    node: torch.fx.Node
    tilings: Mapping[int, Tiling]
    rows: Rows
    owner: dict[torch.fx.Node, str]
    inductor: bool

    @property
    def given(self) -> dict[str, Any]:
        return arguments_of(self.node)

    @property
    def tiling(self) -> Tiling:
        return self.tilings[self.given["position"]]

    def run(self, function: Callable[..., Tensors], *inputs: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
        """The nodes of a function of these inputs; its results."""
        return self._copy(trace(function, inputs, self.inductor), inputs, None)

    def in_tiles(self, function: Callable[..., Tensors], *more: torch.fx.Node) -> list[tuple[torch.fx.Node, ...]]:
        """The results of a function of a tile for each: of x, rows of the weight and bias, labels, the tile's first
        class, and `more`. Equal tiles are traced once."""
        given, traced, made = self.given, dict[int, torch.fx.GraphModule](), []
        for tile, bias, start in zip(self.tiling.tiles, self.biases(), self.starts(), strict=True):
            inputs = [given["x"], self.rows(given["weight"], tile), bias, given["labels"], start, *more]
            there = [n for n in inputs if n is not None]
            if tile.length not in traced:
                of_these = partial(_with_holes, function, [n is not None for n in inputs])
                traced[tile.length] = trace(of_these, there, self.inductor)
            made.append(self._copy(traced[tile.length], there, tile))
        return made

    def _copy(
        self, traced: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node], tile: Tile | None
    ) -> tuple[torch.fx.Node, ...]:
        """What was traced as nodes of the graph, of a tile if there is one."""
        copies = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True))
        for node in traced.graph.nodes:
            if node.op == "call_function":
                copies[node] = self.graph.node_copy(node, lambda n: copies[n])
                copies[node].meta = {"val": node.meta["val"], **self.place}
                if tile is not None:
                    self.owner[copies[node]] = f"{self.tiling.title}/{tile.index}"
        results: Any = next(iter(traced.graph.find_nodes(op="output"))).args[0]
        return tuple(copies[n] for n in results)

    @property
    def place(self) -> dict[str, Any]:
        kept = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")
        return {k: v for k, v in self.node.meta.items() if k in kept}

    def starts(self) -> list[torch.fx.Node]:
        """The first class of each tile as a tensor, so that equal tiles are equal regions."""
        tiles = self.tiling.tiles
        step = gcd(*(tile.start for tile in tiles))
        classes = self.given["weight"].meta["val"].shape[0]
        (every,) = self.run(lambda of: (torch.arange(0, classes, step, device=of.device),), self.given["labels"])
        return [add_piece(self.graph, every, 0, tile.start // step, 1) for tile in tiles]

    def biases(self) -> list[torch.fx.Node | None]:
        """The bias of each tile. It is copied first: a parameter would be gathered anew for each tile, and it is
        small."""
        if (bias := self.given["bias"]) is None:
            return [None] * len(self.tiling.tiles)
        copy = call(self.graph, torch.ops.aten.clone.default, (bias,), {}, self.node)
        return [add_piece(self.graph, copy, 0, tile.start, tile.length) for tile in self.tiling.tiles]

    def join(self, parts: Sequence[torch.fx.Node], axis: int | None) -> torch.fx.Node:
        """Parts of the tiles as one value."""
        like = parts[0].meta["val"]
        if axis is not None:
            sizes = list(like.shape)
            sizes[axis] = sum(part.meta["val"].shape[axis] for part in parts)
            like = like.new_empty(sizes)
        return add_joined(self.graph, parts, axis, like)

    def give(self, results: Mapping[int, torch.fx.Node]) -> None:
        """Put these in the place of the operator's results, by number."""
        for user in list(self.node.users):
            assert user.target is operator.getitem
            number: Any = user.args[1]
            replace_node(user, results[number])

    def wants(self, number: int) -> bool:
        return any(user.args[1] == number for user in self.node.users)


def _expand_forward(loss: _Loss) -> None:
    given = loss.given
    top, total, own, *logits = zip(
        *loss.in_tiles(partial(tile_forward, compute=given["compute"], keep=given["keep"])), strict=True
    )
    finish = partial(
        finish_forward,
        classes=given["weight"].meta["val"].shape[0],
        ignore_index=given["ignore_index"],
        reduction=given["reduction"],
        result=given["result"],
    )
    whole = loss.run(finish, loss.join(top, 1), loss.join(total, 1), loss.join(own, None), given["labels"])
    loss.give(dict(enumerate((*whole, *(loss.join(parts, 1) for parts in logits)))))


def _expand_backward(loss: _Loss) -> None:
    given = loss.given
    scale_of = partial(
        token_gradients, ignore_index=given["ignore_index"], reduction=given["reduction"], compute=given["compute"]
    )
    (scale,) = loss.run(scale_of, given["grad"], given["labels"])
    wanted = [number for number in range(3) if loss.wants(number)]
    made = zip(*loss.in_tiles(partial(tile_backward, wanted=wanted), given["stats"], scale), strict=True)
    loss.give({n: loss.join(parts, 0 if n else None) for n, parts in zip(wanted, made, strict=True)})


def _with_holes(function: Callable[..., Tensors], present: Sequence[bool], *tensors: torch.Tensor) -> Tensors:
    """The function with None where no tensor is present."""
    rest = iter(tensors)
    return function(*(next(rest) if there else None for there in present))
