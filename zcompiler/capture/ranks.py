"""In which region each node is computed: a rank, the number of a region in the order in which they run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch.fx

from zcompiler.capture.pieces import is_boundary
from zcompiler.torch_compat.graphs import dynamo_position
from zcompiler.torch_compat.nodes import is_random, seed_lookup_targets

PROLOGUE = 0


def visit(
    nodes: list[torch.fx.Node],
    core: set[torch.fx.Node],
    repeated: set[torch.fx.Node],
    unit_of: Callable[[torch.fx.Node], str | None],
    tiles: Mapping[torch.fx.Node, str],
) -> tuple[dict[torch.fx.Node, int], list[str]]:
    """A rank for each core node, and the unit of each rank. Rank 0 is the prologue."""
    ranks: dict[torch.fx.Node, int] = {}
    units: list[str | None] = ["prologue"]
    latest: dict[str, int] = {}
    last_random = PROLOGUE
    tiled: dict[int, str | None] = {}  # the ranks of tiles, and the unit around each
    for node in nodes:
        if node not in core or node in repeated:
            continue
        floor = max((ranks.get(i, PROLOGUE) for i in node.all_input_nodes), default=PROLOGUE)
        if node.target is operator.getitem or is_boundary(node):
            ranks[node] = floor
            continue
        if is_random(node):
            floor = max(floor, last_random)
        unit = tiles.get(node) or unit_of(node) or tiled.get(floor)
        if node in tiles and units[-1] is None:
            units[-1] = unit_of(node) or "whole"
        if unit is None:
            if floor == PROLOGUE:
                # Work before any unit: it opens a region whose unit is named by the first node that has one.
                if len(units) == 1:
                    units.append(None)
                floor = 1
            rank = floor
        elif latest.get(unit, PROLOGUE) >= max(floor, 1):
            rank = latest[unit]
        elif units[-1] is None:
            rank = len(units) - 1
            units[rank] = unit
            latest[unit] = rank
        else:
            units.append(unit)
            rank = latest[unit] = len(units) - 1
        if node in tiles:
            tiled[rank] = unit_of(node) or "whole"
        ranks[node] = rank
        if is_random(node):
            last_random = rank
    return ranks, [unit or "whole" for unit in units]


def place_free(
    nodes: list[torch.fx.Node],
    ranks: dict[torch.fx.Node, int],
    repeated: set[torch.fx.Node],
    parameters: frozenset[torch.fx.Node],
    graph_module: torch.fx.GraphModule,
    tiles: Mapping[torch.fx.Node, str],
) -> None:
    """Give the nodes that no anchor reaches a rank: that of their users, where they can; that of a tile to its own."""
    tiled = {ranks[n] for n in tiles if n in ranks}
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    heavy = {n for n in placeholders if n in parameters or dynamo_position(n) is None}
    for node in nodes:
        if any(i in heavy for i in node.all_input_nodes):
            heavy.add(node)
    pinned = seed_lookup_targets()
    for node in reversed(nodes):
        if node in ranks or node in repeated:
            continue
        wanted = sorted({r for user in node.users for r in _ranks_of(user, ranks, repeated)})
        if not wanted or node.target in pinned or (len(wanted) > 1 and node not in heavy):
            ranks[node] = PROLOGUE
        else:
            ranks[node] = next(r for r in range(wanted[0], -1, -1) if is_boundary(node) or r not in tiled)
    for node in nodes:  # what a node is made of may not come after it; a getitem goes with its tuple
        if node in repeated:
            continue
        if node.target is operator.getitem:
            ranks[node] = ranks[node.args[0]]  # type: ignore[index]
        elif is_boundary(node):
            ranks[node] = max((ranks.get(i, PROLOGUE) for i in node.all_input_nodes), default=PROLOGUE)
        else:
            ranks[node] = max([ranks[node], *(r for i in node.all_input_nodes for r in made_at(i, ranks, repeated))])


def _ranks_of(user: torch.fx.Node, ranks: dict[torch.fx.Node, int], repeated: set[torch.fx.Node]) -> set[int]:
    """Where a user computes; a repeated user computes wherever it is used; the graph's output counts as nowhere."""
    if user in repeated:
        return {r for u in user.users for r in _ranks_of(u, ranks, repeated)}
    return {ranks[user]} if user in ranks else set()


def made_at(node: torch.fx.Node, ranks: dict[torch.fx.Node, int], repeated: set[torch.fx.Node]) -> set[int]:
    if node in repeated:
        return {r for i in node.all_input_nodes for r in made_at(i, ranks, repeated)}
    return {ranks[node]} if node in ranks else set()
