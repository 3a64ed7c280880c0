"""What capture hands on: named inputs and the cut graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.fx

from zcompiler.capture.cut import Cut, cut, is_parameter_view
from zcompiler.capture.loss_tiles import expand_losses, has_losses
from zcompiler.capture.names import readable
from zcompiler.capture.pieces import Tile
from zcompiler.capture.recompute import recompute_units
from zcompiler.capture.tied import add_rows_in_place
from zcompiler.capture.tile import TileOperators, copied
from zcompiler.capture.tiling import Tiling
from zcompiler.capture.units import unit_of_node, unit_of_parameter
from zcompiler.torch_compat.compiling import partition_joint
from zcompiler.torch_compat.graphs import (
    call_token,
    call_token_node,
    changed_inputs,
    dynamo_position,
    dynamo_source,
    is_tangent,
)
from zcompiler.torch_compat.nodes import never_recompute, recompute_in_backward
from zcompiler.torch_compat.tensors import is_wrapper

TOKEN = "zinf_call"
UNCUT = "whole"  # the unit of the only region of a phase


@dataclass(frozen=True, slots=True)
class Tilings:
    """What is to be done in tiles, by Dynamo position: matmuls with weights that rest in the store (`stored`), and the
    losses of projections, wherever these weights rest."""

    stored: Mapping[int, Tiling] = field(default_factory=dict)
    losses: Mapping[int, Tiling] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of Dynamo's graph. `unit` is set for parameters alone."""

    position: int
    name: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph as Dynamo and AOTAutograd see it, cut into regions.

    `parameters[phase]` maps the name a region uses for a parameter to its input; `user_outputs` is how many of
    forward's results go to the user (the rest is saved for backward). `low`: the parameters that the regions take
    already cast, and to what; `tiles`: what regions use as rows of parameters.
    """

    inputs: tuple[Input, ...]
    forward: Cut
    backward: Cut | None
    user_outputs: int
    positions: dict[str, int]  # placeholder name (forward and backward) -> Dynamo position
    low: Mapping[int, torch.dtype] = field(default_factory=dict)
    tiles: Mapping[str, Tile] = field(default_factory=dict)

    def parameter(self, name: str) -> Input | None:
        """The parameter that a region calls `name`, or None."""
        position = self.positions.get(name)
        if position is None or self.inputs[position].unit is None:
            return None
        return self.inputs[position]


def name_inputs(graph_module: torch.fx.GraphModule, inputs: Sequence[object]) -> tuple[Input, ...]:
    """Names for Dynamo's inputs, and the unit of each parameter.

    A parameter counts as one by what it is, not by its name: compiled graphs are reused across module instances.
    """
    sources = [dynamo_source(n) for n in graph_module.graph.find_nodes(op="placeholder")]
    names: dict[int, str] = {}
    for wanted in (True, False):
        found = [i for i, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter) is wanted]
        names.update(zip(found, readable([sources[i] for i in found]), strict=True))
    return tuple(
        Input(
            i,
            names[i],
            unit_of_parameter(tuple(names[i].split("."))) if isinstance(value, torch.nn.Parameter) else None,
        )
        for i, value in enumerate(inputs)
    )


def returns_views(graph_module: torch.fx.GraphModule, named: tuple[Input, ...]) -> bool:
    """Whether Dynamo's graph returns a parameter, or a tensor that looks into one. AOTAutograd makes such a result
    from the live parameter, behind the compiled graph."""
    placeholders = list(graph_module.graph.find_nodes(op="placeholder"))
    storages = {_storage(n) for n, i in zip(placeholders, named, strict=True) if i.unit is not None} - {None}
    output = next(iter(graph_module.graph.find_nodes(op="output")))
    return any(_storage(node) in storages for node in output.all_input_nodes)


def _storage(node: torch.fx.Node) -> object:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or is_wrapper(value):
        return None
    return value.untyped_storage()._cdata


def partition(
    joint: torch.fx.GraphModule,
    joint_inputs: object,
    named: tuple[Input, ...],
    num_fwd_outputs: int,
    inductor: bool,
    recomputes: Callable[[str], bool],
    **kwargs: object,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split a joint graph, which changes, into forward and backward.

    `recomputes` says of which units backward is to compute all again that it can from the unit's input.
    Forward gains one saved output, the call's token: a one-element tensor that tells backward which forward it
    belongs to (parameters that backward does not read have no placeholder there).
    """
    _never_reread_changed_inputs(joint)
    _never_save_views_of_parameters(joint, named)
    recompute_units(joint, unit_getter(named), recomputes)
    fw, bw = partition_joint(joint, joint_inputs, inductor=inductor, num_fwd_outputs=num_fwd_outputs, **kwargs)
    call_token_node(fw, bw, num_fwd_outputs, TOKEN)
    return fw, bw


def cut_training(
    fw: torch.fx.GraphModule,
    bw: torch.fx.GraphModule,
    named: tuple[Input, ...],
    num_fwd_outputs: int,
    inductor: bool,
    tilings: Tilings,
    uncut: bool = False,
) -> tuple[Captured, Captured]:
    """Forward and backward, cut: as they are, and with tiles (the same if there are none). With `uncut` each of the two
    is a single region."""
    forward = _whole(fw, named, tilings, inductor, uncut=uncut)
    backward = _whole(bw, named, tilings, inductor, is_backward=True, uncut=uncut)
    plain = _captured(named, forward, backward, num_fwd_outputs, _positions(fw) | _positions(bw))
    if uncut or not tilings.stored:
        return plain, plain
    forward, tiles, found = _tiled(fw, named, tilings, {}, inductor)
    primals = [plain.positions.get(n.name) for n in fw.graph.find_nodes(op="placeholder")]
    gradients = {i: tilings.stored[p] for i, p in enumerate(primals) if p in found}
    backward, more, _ = _tiled(bw, named, tilings, gradients, inductor, is_backward=True)
    return plain, _with_tiles(plain, forward, backward, tiles | more)


def cut_inference(
    graph_module: torch.fx.GraphModule,
    named: tuple[Input, ...],
    tilings: Tilings,
    inductor: bool,
    uncut: bool = False,
) -> tuple[Captured, Captured]:
    """A graph that has no backward, cut: as it is, and with tiles. With `uncut` it is a single region."""
    forward = _whole(graph_module, named, tilings, inductor, uncut=uncut)
    plain = _captured(named, forward, None, len(forward.results), _positions(graph_module))
    if uncut or not tilings.stored:
        return plain, plain
    forward, tiles, _ = _tiled(graph_module, named, tilings, {}, inductor)
    return plain, _with_tiles(plain, forward, None, tiles)


def _captured(
    named: tuple[Input, ...], forward: Cut, backward: Cut | None, user_outputs: int, positions: dict[str, int]
) -> Captured:
    pieces = forward.pieces | (backward.pieces if backward is not None else {})
    of = {name: positions[piece.whole] for name, piece in pieces.items() if piece.whole in positions}
    return Captured(named, forward, backward, user_outputs, positions | of)


def _whole(
    graph_module: torch.fx.GraphModule,
    named: tuple[Input, ...],
    tilings: Tilings,
    inductor: bool,
    is_backward: bool = False,
    uncut: bool = False,
) -> Cut:
    """The graph cut as it is. Losses are in tiles all the same: of weights that are there as a whole."""
    if not has_losses(graph_module.graph):
        return cut_phase(graph_module, named, is_backward, uncut=uncut)
    graph_module = copied(graph_module)
    if is_backward:
        add_rows_in_place(graph_module.graph)
    tile = TileOperators(graph_module.graph)
    expand_losses(graph_module.graph, tilings.losses, tile.rows_of({}), tile.owner, inductor)
    return cut_phase(graph_module, named, is_backward, tile, uncut)


def _tiled(
    graph_module: torch.fx.GraphModule,
    named: tuple[Input, ...],
    tilings: Tilings,
    gradients: Mapping[int, Tiling],
    inductor: bool,
    is_backward: bool = False,
) -> tuple[Cut, dict[str, Tile], set[int]]:
    """A copy of the graph with its tiles, cut; which input of a region is which tile; the parameters that have any."""
    graph_module = copied(graph_module)
    parameters = _parameters(graph_module, named)
    placeholders = [n for n in graph_module.graph.find_nodes(op="placeholder") if n in parameters]
    if is_backward:
        add_rows_in_place(graph_module.graph)
    stored = tilings.stored
    wanted = {n: stored[p] for n in placeholders if (p := dynamo_position(n)) is not None and p in stored}
    tile = TileOperators(graph_module.graph)
    expand_losses(graph_module.graph, tilings.losses, tile.rows_of(wanted), tile.owner, inductor)
    tile.apply(wanted, parameters, gradients)
    rows = {node.name: of for node, of in tile.tiles.items()}
    made = cut_phase(graph_module, named, is_backward, tile)
    return made, rows, {of.position for of in rows.values()}


def _with_tiles(plain: Captured, forward: Cut, backward: Cut | None, tiles: dict[str, Tile]) -> Captured:
    positions = plain.positions | {name: tile.position for name, tile in tiles.items()}
    return Captured(plain.inputs, forward, backward, plain.user_outputs, positions, tiles=tiles)


def cut_phase(
    graph_module: torch.fx.GraphModule,
    named: tuple[Input, ...],
    is_backward: bool = False,
    tile: TileOperators | None = None,
    uncut: bool = False,
) -> Cut:
    tangents = [n for n in graph_module.graph.find_nodes(op="placeholder") if is_tangent(n)]
    return cut(
        graph_module,
        _parameters(graph_module, named),
        (lambda node: UNCUT) if uncut else unit_getter(named),
        tangents if is_backward else None,
        frozenset(n for n in graph_module.graph.nodes if n.target is call_token),
        tile.owner if tile is not None else {},
        frozenset(tile.tiles) if tile is not None else frozenset(),
    )


def unit_getter(named: tuple[Input, ...]) -> Callable[[torch.fx.Node], str | None]:
    """Which unit a node belongs to, of those that own these parameters."""
    units = frozenset(i.unit for i in named if i.unit is not None)
    return lambda node: unit_of_node(node, units)


def _parameters(graph_module: torch.fx.GraphModule, named: tuple[Input, ...]) -> frozenset[torch.fx.Node]:
    return frozenset(
        node
        for node in graph_module.graph.find_nodes(op="placeholder")
        if (position := dynamo_position(node)) is not None and named[position].unit is not None
    )


def _positions(graph_module: torch.fx.GraphModule) -> dict[str, int]:
    nodes = graph_module.graph.find_nodes(op="placeholder")
    return {n.name: position for n in nodes if (position := dynamo_position(n)) is not None}


def _never_reread_changed_inputs(joint: torch.fx.GraphModule) -> None:
    """By the time of backward an input that forward changes (a running mean) holds its new content: whatever was
    computed from the old one would come out different."""
    changed = changed_inputs(joint)
    stale = {n for n in joint.graph.find_nodes(op="placeholder") if dynamo_position(n) in changed}
    for node in joint.graph.nodes:
        if node.op == "call_function" and any(i in stale for i in node.all_input_nodes):
            never_recompute(node)
            if is_parameter_view(node):
                stale.add(node)


def _never_save_views_of_parameters(joint: torch.fx.GraphModule, named: tuple[Input, ...]) -> None:
    """A saved view of a parameter would alias a gathered buffer; a saved cast would be a copy for each layer."""
    changed = changed_inputs(joint)
    derived = {n for n in _parameters(joint, named) if dynamo_position(n) not in changed}
    for node in joint.graph.nodes:
        if is_parameter_view(node) and all(i in derived for i in node.all_input_nodes):
            derived.add(node)
            recompute_in_backward(node)
