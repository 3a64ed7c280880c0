"""Cut an aten graph into regions, one for each visit of a unit, in an order that the data dependencies allow.

The graph is in program order, so a region is a run of nodes of one unit; the rest is deciding where the nodes go that
belong to no unit, or to several:
* views and casts of parameters, factories and constants are cheap and are repeated in each region that uses them, so
  that no region hands on an alias of a gathered parameter and equal layers stay equal;
* nodes that need no parameter (in backward: no tangent) sink into the one region that uses them; those that several
  regions share go to a prologue, or, when they hang on saved activations, to the first region that uses them;
* random nodes keep their order, or the random stream would change;
* a tile of a matmul (`tile.py`) is a region in which nothing else is computed, so that equal tiles stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.fx

from zcompiler.capture.aliases import storage_roots
from zcompiler.capture.pieces import Joined, Piece, described, is_boundary
from zcompiler.capture.ranks import PROLOGUE, made_at, place_free, visit
from zcompiler.torch_compat.graphs import module_of
from zcompiler.torch_compat.nodes import is_random
from zcompiler.torch_compat.sizes import nodes_of_sizes

CASTS = frozenset({"aten._to_copy.default", "prims.convert_element_type.default"})
_VIEWS = frozenset(
    {
        "aten.t.default", "aten.permute.default", "aten.transpose.int", "aten.view.default", "aten.alias.default",
        "aten.detach.default", "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.dim",
        "aten.slice.Tensor", "aten.select.int", "aten.reshape.default", "aten._unsafe_view.default",
        "aten.as_strided.default", *CASTS,
    }
)  # fmt: skip


@dataclass(frozen=True)
class CutRegion:
    """The compute of one unit in one phase, as a graph of its own: boxed inputs in, `outputs` in order out."""

    unit: str
    module: torch.fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """A graph as regions. `results` are the graph's outputs: names, or a constant that is no node; `roots` leads from
    a region output that is a view to what made its storage, an input or a node with an entry in `fakes`. `pieces` are
    inputs of regions that are parts of other values, `joins` values that are put together of outputs of regions."""

    inputs: tuple[str, ...]
    regions: tuple[CutRegion, ...]
    results: tuple[object, ...]
    fakes: dict[str, object]  # name -> the node's fake tensor (or symbolic int), for inputs and region outputs
    roots: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    joins: dict[str, Joined] = field(default_factory=dict)

    def without_graphs(self) -> Cut:
        """Only the names. The graphs of a deep model and their fake tensors take a hundred megabytes."""
        return Cut(self.inputs, (), self.results, {}, pieces=self.pieces, joins=self.joins)


def is_parameter_view(node: torch.fx.Node) -> bool:
    """Whether the node only looks at its input differently (or casts it)."""
    return node.op == "call_function" and str(node.target) in _VIEWS


def cut(
    graph_module: torch.fx.GraphModule,
    parameters: frozenset[torch.fx.Node],
    unit_of: Callable[[torch.fx.Node], str | None],
    anchors: Sequence[torch.fx.Node] | None = None,
    skip: frozenset[torch.fx.Node] = frozenset(),
    tiles: Mapping[torch.fx.Node, str] | None = None,
    rows: frozenset[torch.fx.Node] = frozenset(),
) -> Cut:
    """Cut `graph_module` at units.

    `parameters` are the placeholders that hold parameters; `anchors` the placeholders whose dependents are the real
    work of this phase (forward: the parameters, the default; backward: the tangents); `skip` nodes that the caller
    makes itself; `tiles` the nodes of tiles, each with its tile's name; `rows` placeholders that are rows of a
    parameter, and no inputs of the graph.
    """
    tiles = tiles or {}
    parameters |= rows
    nodes = [n for n in graph_module.graph.nodes if n.op in ("call_function", "get_attr") and n not in skip]
    repeated = _repeated(nodes, parameters)
    core = _core(nodes, parameters if anchors is None else frozenset(anchors) | rows, repeated, tiles)
    ranks, units = visit(nodes, core, repeated, unit_of, tiles)
    place_free(nodes, ranks, repeated, parameters, graph_module, tiles)
    return _build(graph_module, nodes, ranks, units, repeated, skip, rows)


def _repeated(nodes: list[torch.fx.Node], parameters: frozenset[torch.fx.Node]) -> set[torch.fx.Node]:
    """Nodes cheap enough to be made again in each region that uses them."""
    chosen: set[torch.fx.Node] = set()
    for node in nodes:
        inputs = node.all_input_nodes
        if any(is_boundary(user) for user in node.users):
            continue  # to be made in one place: others take pieces of it
        if not inputs:
            if not is_random(node):
                chosen.add(node)
        elif (
            all(i in chosen for i in inputs)
            and not is_random(node)
            and _small(node)
            or (is_parameter_view(node) and all(i in parameters or i in chosen for i in inputs))
        ):
            chosen.add(node)
    return chosen


def _small(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.numel() <= 1


def _core(
    nodes: list[torch.fx.Node],
    anchors: frozenset[torch.fx.Node],
    repeated: set[torch.fx.Node],
    tiles: Mapping[torch.fx.Node, str],
) -> set[torch.fx.Node]:
    """The nodes that depend on an anchor, the random ones, and those of tiles: they stay in program order."""
    core: set[torch.fx.Node] = set()
    for node in nodes:
        if node in repeated:
            if any(i in anchors or i in core for i in node.all_input_nodes):
                core.add(node)
        elif node in tiles or is_random(node) or any(i in anchors or i in core for i in node.all_input_nodes):
            core.add(node)
    return core


def _build(
    graph_module: torch.fx.GraphModule,
    nodes: list[torch.fx.Node],
    ranks: dict[torch.fx.Node, int],
    units: list[str],
    repeated: set[torch.fx.Node],
    skip: frozenset[torch.fx.Node],
    rows: frozenset[torch.fx.Node],
) -> Cut:
    output = next(iter(graph_module.graph.find_nodes(op="output")))
    results = tuple(output.args[0])
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    handed_out = {n for n in results if isinstance(n, torch.fx.Node)}
    # A repeated node that is itself a result is made in the last region that can make it.
    home = dict(ranks)
    for node in nodes:
        if node in repeated and node in handed_out:
            home[node] = max(made_at(node, ranks, repeated), default=PROLOGUE)
    members: list[list[torch.fx.Node]] = [[] for _ in units]
    for rank, chosen in enumerate(_members(nodes, home, repeated, len(units))):
        members[rank] = chosen
    regions: list[CutRegion] = []
    pieces, joins = described(nodes)
    outside = [n for n in nodes if is_boundary(n)]
    fakes: dict[str, object] = {n.name: n.meta.get("val") for n in (*placeholders, *skip, *outside)}
    made_by = storage_roots(nodes)
    roots: dict[str, str] = {}
    for rank, chosen in enumerate(members):
        if not chosen:
            continue
        own = set(chosen)
        outputs = [
            n
            for n in chosen
            if home.get(n) == rank
            and (n in handed_out or any(u not in skip and u.op != "output" and u not in own for u in n.users))
            and not (n in repeated and n not in handed_out)
        ]
        if not outputs:
            continue
        views = {n: made_by[n] for n in outputs if n in made_by}
        roots.update((n.name, root.name) for n, root in views.items())
        fakes.update((n.name, n.meta.get("val")) for n in (*outputs, *views.values()))
        regions.append(_region(graph_module, units[rank], chosen, outputs))
    names = tuple(n.name if isinstance(n, torch.fx.Node) else n for n in results)
    inputs = tuple(n.name for n in placeholders if n not in rows)
    return Cut(inputs, tuple(regions), names, fakes, roots, pieces, joins)


def _members(
    nodes: list[torch.fx.Node], home: dict[torch.fx.Node, int], repeated: set[torch.fx.Node], count: int
) -> list[list[torch.fx.Node]]:
    """The nodes of each rank in graph order, with the repeated nodes each rank needs."""
    wanted: list[set[torch.fx.Node]] = [set() for _ in range(count)]
    for node, rank in home.items():
        if not is_boundary(node):
            wanted[rank].add(node)
    for chosen in wanted:
        stack = list(chosen)
        while stack:
            for i in stack.pop().all_input_nodes:
                if i in repeated and i not in chosen:
                    chosen.add(i)
                    stack.append(i)
    return [[n for n in nodes if n in chosen] for chosen in wanted]


def _region(
    graph_module: torch.fx.GraphModule, unit: str, chosen: list[torch.fx.Node], outputs: list[torch.fx.Node]
) -> CutRegion:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    own = set(chosen)
    inputs: list[torch.fx.Node] = []
    for node in chosen:
        for i in node.all_input_nodes:
            if i not in own and i not in copies:
                inputs.append(i)
                copies[i] = graph.placeholder(i.name)
                copies[i].meta = {"val": i.meta.get("val")}
    for i in nodes_of_sizes(graph_module.graph, inputs):
        inputs.append(i)
        copies[i] = graph.placeholder(i.name)
        copies[i].meta = {"val": i.meta["val"]}
    for node in chosen:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    result = graph.output(tuple(copies[n] for n in outputs))
    result.meta["user_visible_output_idxs"] = list(range(len(outputs)))
    module = module_of(graph_module, graph)
    return CutRegion(unit, module, tuple(n.name for n in inputs), tuple(n.name for n in outputs))
