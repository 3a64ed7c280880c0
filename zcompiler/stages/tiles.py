"""Tiles where nothing fits without: a graph goes through the stages as it is, then in smaller and smaller pieces."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import torch
import torch.fx

from zcompiler.capture.captured import name_inputs
from zcompiler.capture.loss import logits_bytes
from zcompiler.errors import DoesNotFit
from zcompiler.options import Options
from zcompiler.schedule.sizes import format_bytes
from zcompiler.stages.around import Around
from zcompiler.stages.graph import Stages
from zcompiler.torch_compat.graphs import copy_of_dynamo_graph

Rules = tuple[tuple[str, int], ...]
Compiled = TypeVar("Compiled")

PART = 8  # of the limit is what a piece has at most,
FINER = 4  # and so many times less in each further try,
TRIES = 4  # of which there are so many,
LEAST = 64 << 10  # as long as pieces have so many bytes
MOST = 1024  # and there are no more of them


def in_tiles_if_needed(
    around: Around,
    name: str,
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compiled: Callable[[Stages], Compiled],
) -> Compiled:
    """What `compiled` makes of the stages of a graph, with the tiles that option or given plan ask for; where they
    leave it to zinf, without tiles, and if that does not fit, with the fewest that do.

    DoesNotFit of the try that needs least, of those that a limit of that size would come to as well.
    """
    file, options = around.given, around.options
    if file is not None and name in file.graphs:
        return compiled(Stages(around, name, graph_module, inputs, file.graphs[name].tile))
    if options.tile is not None:
        return compiled(Stages(around, name, graph_module, inputs, options.tile))
    refused: list[DoesNotFit] = []
    untouched = graph_module.graph
    for piece, rules in _tries(options, graph_module, inputs):
        graph_module.graph = copy_of_dynamo_graph(untouched) if rules else untouched
        why = [_why(piece, refused[0])] if refused else []
        try:
            return compiled(Stages(around, name, graph_module, inputs, rules, why))
        except DoesNotFit as refusal:
            if not piece or all(piece in _pieces(limit) for limit in (refusal.least, refusal.in_mib)):
                refused.append(copy(refusal))  # without its frames, which hold all that this try has captured
        gc.collect()  # and that is in cycles: without this the next try would be captured beside it
    raise min(refused, key=lambda refusal: refusal.least)


def _why(piece: int, untiled: DoesNotFit) -> str:
    least = format_bytes(untiled.least)
    return f"in tiles of up to {format_bytes(piece)}: without any, {least} would be the least"


def _tries(options: Options, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[tuple[int, Rules]]:
    """Bytes of a piece and the tiles that makes: none at first."""
    sizes = _sizes(graph_module, inputs)
    yield 0, ()
    tried: set[Rules] = {()}
    for piece in _pieces(options.memory):
        rules = tuple((name, -(-size // piece)) for name, size in sizes.items() if size > piece)
        if rules not in tried and sum(count for _, count in rules) <= MOST:
            tried.add(rules)
            yield piece, rules


def _pieces(memory: int) -> list[int]:
    """Powers of `FINER`, so that a larger limit comes to the same pieces."""
    piece = LEAST
    while piece * FINER <= memory // PART:
        piece *= FINER
    return [p for i in range(TRIES) if (p := piece // FINER**i) >= LEAST]


def _sizes(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Mapping[str, int]:
    """Bytes of each matrix, or of the logits that it makes for a loss, if these are more."""
    logits = logits_bytes(graph_module)
    matrices = {i.position: i.name for i in name_inputs(graph_module, inputs) if i.unit is not None}
    return {
        name: max(inputs[position].nbytes, logits.get(position, 0))
        for position, name in matrices.items()
        if inputs[position].dim() > 1
    }
