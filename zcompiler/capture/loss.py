"""tile-losses: a projection and the cross-entropy of its result become one operator (`loss_op.py`).

Works on Dynamo's graph, before autograd: there a loss is one call, whatever its backward looks like or is taken apart
into, and autocast has left its mark on the types of values alone. The result of the projection must go through nothing
but what leaves the classes alone (views, slices of tokens, a cast) into `F.cross_entropy`, and perhaps to the caller.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from zcompiler.capture.projection import Projection, projection_of, rows_of, value_of
from zcompiler.capture.tiling import Tiling
from zcompiler.torch_compat.sizes import size_hint

_SIGNATURE = inspect.signature(F.cross_entropy)


@dataclass(frozen=True, slots=True)
class Returned:
    """Logits that the caller gets beside their loss: result `logits` of the graph was made without autograd of its
    result `x` and its inputs `weight` and `bias`."""

    logits: int
    x: int
    weight: int
    bias: int | None


@dataclass(frozen=True, slots=True)
class TiledLosses:
    """What was done to a graph: which logits it returns, how many results it had before, and in words which losses are
    in tiles, and why others of tiled weights were left as they are."""

    returned: tuple[Returned, ...]
    results: int
    done: tuple[str, ...]
    left: tuple[str, ...]


class _Refused(Exception):
    """A loss stays as it is, and why."""


def tile_losses(graph_module: torch.fx.GraphModule, tilings: Mapping[int, Tiling]) -> TiledLosses:
    """Join each projection of a weight that has a tiling, by position, with its loss. Changes the graph.

    Where the caller gets the logits, the graph gives them without autograd, and as one more result what they were made
    of.
    """
    graph = graph_module.graph
    positions = {n: i for i, n in enumerate(graph.find_nodes(op="placeholder"))}
    output = next(iter(graph.find_nodes(op="output")))
    results: Any = output.args[0]
    returned: list[Returned] = []
    done, left = [], []
    for loss, asked, found in _losses(graph):
        tiling = tilings.get(positions[found.weight]) if found.weight in positions else None
        if tiling is None:
            continue
        try:
            _check(asked, loss, found, output)
            if found.bias is not None and found.bias not in positions:
                raise _Refused("its bias is not a parameter")
        except _Refused as why:
            left.append(f"tiles: the loss of {tiling.name} has all its logits in memory at once, since {why}")
            continue
        given = _join(asked, loss, found, positions, output)
        returned += given
        what = "the logits are returned, their gradient is" if given else "the logits and their gradient are"
        done.append(f"{tiling.name}: its loss in {len(tiling.tiles)} tiles of classes; {what} in memory tile by tile")
    graph.lint()
    graph_module.recompile()
    return TiledLosses(tuple(returned), len(results), tuple(done), tuple(left))


def logits_bytes(graph_module: torch.fx.GraphModule) -> dict[int, int]:
    """Bytes of the logits that go into a cross-entropy, in float32, by the position of the weight that makes them."""
    positions = {n: i for i, n in enumerate(graph_module.graph.find_nodes(op="placeholder"))}
    found: dict[int, int] = {}
    for _, _, projection in _losses(graph_module.graph):
        if (position := positions.get(projection.weight)) is not None:
            size = math.prod(size_hint(n) for n in value_of(projection.node).shape) * torch.float32.itemsize
            found[position] = max(size, found.get(position, 0))
    return found


def _losses(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, dict[str, Any], Projection]]:
    """Each cross-entropy of a projection, with its arguments by name."""
    for loss in graph.find_nodes(op="call_function", target=F.cross_entropy):
        asked = _SIGNATURE.bind(*loss.args, **loss.kwargs)
        asked.apply_defaults()
        if (found := projection_of(asked.arguments["input"])) is not None:
            yield loss, asked.arguments, found


def _check(asked: Mapping[str, Any], loss: torch.fx.Node, found: Projection, output: torch.fx.Node) -> None:
    """Raise _Refused for a loss that tiles cannot compute."""
    given = [name for name in ("weight", "size_average", "reduce") if asked[name] is not None]
    if given or asked["label_smoothing"]:
        raise _Refused(f"it has {', '.join(given) or 'label_smoothing'}")
    if found.other:
        raise _Refused(f"the logits go through {', '.join(n.name for n in found.other)}")
    logits, labels = value_of(asked["input"]), value_of(asked["target"])
    if logits.dim() != 2 or labels.dim() != 1 or labels.dtype != torch.int64:
        raise _Refused("its labels are not one class for each of the tokens in a row")
    if len({value_of(node).dtype for node in (found.node, *found.chain)}) > 2:
        raise _Refused("its logits are cast more than once")
    first = (*found.chain, loss)[0]
    if any(user is not output and user is not first for user in found.node.users):
        raise _Refused("the model computes something else of the logits")
    if any(len(node.users) > 1 for node in found.chain):
        raise _Refused("the model uses the logits in another form")
    results: Any = output.args[0]
    if results.count(found.node) > 1:
        raise _Refused("the model returns the logits twice")
    if found.node in results and any(node.target is operator.getitem for node in found.chain):
        raise _Refused("the model returns logits of more tokens than the loss has")


def _join(
    asked: Mapping[str, Any],
    loss: torch.fx.Node,
    found: Projection,
    positions: Mapping[torch.fx.Node, int],
    output: torch.fx.Node,
) -> list[Returned]:
    graph, value, returned = loss.graph, value_of(found.node), []
    compute = torch.promote_types(value_of(asked["input"]).dtype, torch.float32)
    keep = output in found.node.users
    with graph.inserting_before(loss):
        x = rows_of(graph, _cast(found.x, value.dtype), found)
        bias = _cast(found.bias, value.dtype) if found.bias is not None else None
        arguments = (
            x, found.weight, bias, asked["target"], positions[found.weight], asked["ignore_index"],
            asked["reduction"], compute, value_of(loss).dtype, keep,
        )  # fmt: skip
        # Late, because it registers operators, which no process is to have that has no use for them.
        from zcompiler.capture.loss_op import FORWARD

        joined = graph.call_function(FORWARD, arguments)
        joined.meta = {k: v for k, v in found.node.meta.items() if k in ("nn_module_stack", "stack_trace")}
        loss.replace_all_uses_with(graph.call_function(operator.getitem, (joined, 0)))
        if keep:
            logits = graph.call_method("detach", (graph.call_function(operator.getitem, (joined, 2)),))
            results: Any = output.args[0]
            sizes = [graph.call_method("size", (found.x, i)) for i in range(value.dim() - 1)]
            logits = graph.call_method("view", (logits, *sizes, value.shape[-1]))
            at = results.index(found.node)
            output.args = ((*results[:at], logits, *results[at + 1 :], x),)
            of_bias = positions[found.bias] if found.bias is not None else None
            returned.append(Returned(at, len(results), positions[found.weight], of_bias))
    for node in (loss, *reversed(found.chain), found.node):
        graph.erase_node(node)
    return returned


def _cast(node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    return node if value_of(node).dtype == dtype else node.graph.call_method("to", (node, dtype))
