"""A schedule as an FX graph, the form that passes rewrite, and back without loss.

Nodes stand in issue order. Values at home are placeholders; an op is a `call_function` of `schedule.ops` whose
arguments are the nodes that made what it uses, followed by the nodes of what it overwrites without reading. A run has
a `written` node for each value it writes. `meta["op"]` is the op, without its waits, which follow from the edges (as
arguments of the node its fields would be walked by FX again and again, which takes longer than the passes do);
`meta["region"]` is where it stands, and `meta["over"]` what a run overwrites without reading. What belongs to the whole
schedule is the Header on the first node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch.fx

from zcompiler.schedule import ops as targets
from zcompiler.schedule.flow import Copy, Flow, Place, moved_form
from zcompiler.schedule.model import Op, Region, Schedule, Tier, Value
from zcompiler.schedule.waits import name_waits


@dataclass
class Header:
    """What a graph carries besides its nodes. Passes may replace values; the order of `regions` is fixed."""

    name: str
    tiers: tuple[Tier, ...]
    values: dict[str, Value]
    regions: tuple[str, ...]
    rank: int
    world: int

    def moved_form(self, value: str) -> str:
        """The form in which a value rests and moves."""
        return moved_form(Schedule("", (), (), (), self.rank, self.world), self.values[value])


def header(graph: torch.fx.Graph) -> Header:
    found: Header = next(iter(graph.nodes)).meta["header"]
    return found


def to_graph(schedule: Schedule) -> torch.fx.Graph:
    """The graph of a schedule. An operand that is not live comes from a placeholder; the verifier is to report it."""
    graph = torch.fx.Graph()
    values = {v.name: v for v in schedule.values}
    root = graph.placeholder("schedule")
    names = tuple(r.name for r in schedule.regions)
    root.meta["header"] = Header(schedule.name, schedule.tiers, values, names, schedule.rank, schedule.world)
    flow = Flow(schedule, deps=False)
    current: dict[Place, torch.fx.Node] = {}
    for place in flow.live:
        current[place] = home_placeholder(graph, place.value)
    for step in flow.steps():
        op = step.op
        taken = [place for place, _ in step.uses] or ([step.frees[0]] if step.frees else [])
        over = [copy.place for copy in step.rewrites if copy.place not in taken]
        args = [current.get(p) or home_placeholder(graph, p.value) for p in [*taken, *over]]
        node = add_op(graph, op, step.region.name, args, over=tuple(p.value for p in over) if op.kind == "run" else ())
        if step.frees:
            current.pop(step.frees[0], None)
        for copy in _in_written_order(op, step.makes, step.rewrites):
            current[copy.place] = _written(graph, node, copy.place.value) if op.kind == "run" else node
    return graph


def to_schedule(graph: torch.fx.Graph, waits: bool = True) -> Schedule:
    """The schedule of a graph: node order is issue order, waits come from the edges. Without `waits` it is good for
    asking what it holds.

    ValueError when the nodes of a region do not stand together, in the order of the header's regions."""
    head = header(graph)
    nodes = op_nodes(graph)
    placed: list[tuple[Region, Op]] = []
    by_region: dict[str, list[int]] = {name: [] for name in head.regions}
    order = {name: i for i, name in enumerate(head.regions)}
    shells = {name: Region(name, ()) for name in head.regions}
    last = 0
    for i, node in enumerate(nodes):
        region = node.meta["region"]
        if order[region] < last:
            raise ValueError(f"{node.name} is of {region}, but stands after the first node of {head.regions[last]}")
        last = order[region]
        placed.append((shells[region], op_of(node)))
        by_region[region].append(i)
    done = [op for _, op in placed]
    if waits:
        index = {node: i for i, node in enumerate(nodes)}
        found = [name_waits(placed, i, _deps(node, index)) for node, i in index.items()]
        done = [replace(op, after=after) if after else op for op, after in zip(done, found, strict=True)]
    regions = tuple(Region(name, tuple(done[i] for i in members)) for name, members in by_region.items())
    return Schedule(head.name, head.tiers, tuple(head.values.values()), regions, head.rank, head.world)


def add_op(
    graph: torch.fx.Graph, op: Op, region: str, args: Sequence[torch.fx.Node], over: tuple[str, ...] = ()
) -> torch.fx.Node:
    """A node for `op` at the graph's insertion point. `args`: what it uses, then what it overwrites unread; for a run
    `over` names the latter."""
    node = _node(graph, targets.TARGETS[op.kind], f"{op.kind}_{op.value}", tuple(args))
    node.meta["op"] = replace(op, after=()) if op.after else op
    node.meta["region"] = region
    node.meta["over"] = over
    return node


def op_of(node: torch.fx.Node) -> Op:
    """The op of a node, without its waits."""
    op: Op = node.meta["op"]
    return op


def kind_of(node: torch.fx.Node) -> str:
    """`read`, `run`, ..., also `written`; empty for placeholders."""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def value_of(node: torch.fx.Node) -> str:
    """The value that a node (an op, a `written`, a placeholder) is about."""
    if node.op == "placeholder":
        return str(node.meta.get("value", ""))
    return str(node.args[1]) if node.target is targets.written else op_of(node).value


def op_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that are lines of the schedule, in issue order."""
    return [n for n in graph.nodes if n.op == "call_function" and n.target is not targets.written]


def region_nodes(graph: torch.fx.Graph) -> Iterator[tuple[str, list[torch.fx.Node]]]:
    """Each region with its op nodes, in order."""
    found: dict[str, list[torch.fx.Node]] = {name: [] for name in header(graph).regions}
    for node in op_nodes(graph):
        found[node.meta["region"]].append(node)
    yield from found.items()


def home_placeholder(graph: torch.fx.Graph, value: str) -> torch.fx.Node:
    """The placeholder of a value that is there from the start; made when missing."""
    made: dict[str, torch.fx.Node] = next(iter(graph.nodes)).meta.setdefault("placeholders", {})
    if value not in made:
        last = next(reversed(made.values())) if made else next(iter(graph.nodes))
        with graph.inserting_after(last):
            made[value] = graph.placeholder(f"home_{value}")
        made[value].meta["value"] = value
    return made[value]


def arg_nodes(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [a for a in node.args if isinstance(a, torch.fx.Node)]


def users_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The op nodes that use or free the copy a node stands for."""
    return [u for u in node.users if u.target is not targets.written]


def _written(graph: torch.fx.Graph, run: torch.fx.Node, value: str) -> torch.fx.Node:
    return _node(graph, targets.written, f"written_{value}", (run, value))


def _node(graph: torch.fx.Graph, target: Callable[..., NoReturn], name: str, args: tuple[Any, ...]) -> torch.fx.Node:
    """A node, made without what FX does with arguments that a tracer hands it, nor with an attribute that is assigned
    (it looks the node up again): these take longer than all else."""
    node = graph.create_node("call_function", target, (), {}, name)
    torch.fx.Node.args.__set__(node, args)  # type: ignore[attr-defined]
    return node


def _in_written_order(op: Op, makes: tuple[Copy, ...], rewrites: tuple[Copy, ...]) -> list[Copy]:
    copies = {copy.place.value: copy for copy in (*makes, *rewrites)}
    return [copies[name] for name in op.writes] if op.kind == "run" else list(copies.values())


def _deps(node: torch.fx.Node, index: dict[torch.fx.Node, int]) -> list[int]:
    """The ops that a node has to follow, by issue index: the edges read the way `flow` reads the lines."""
    args = arg_nodes(node)
    found: set[torch.fx.Node] = set()
    if node.target is targets.release:
        users = [u for u in users_of(args[0]) if u is not node and u.target is not targets.release]
        found = set(users) or _producers(args[:1])
    else:
        found = _producers(args)
        maker = _maker(args[0]) if args else None
        for old in _overwritten(node, args):
            readers = [u for u in users_of(old) if u is not node]
            found.update(u for u in readers if node.target is targets.run or u is not maker)
    return sorted(index[n] for n in found)


def _producers(args: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    made = [a.args[0] if a.target is targets.written else a for a in args]
    return {n for n in made if isinstance(n, torch.fx.Node) and n.op == "call_function"}


def _overwritten(node: torch.fx.Node, args: list[torch.fx.Node]) -> list[torch.fx.Node]:
    if node.target is not targets.run:
        return args[1:]
    reads, writes = op_of(node).reads, op_of(node).writes
    return [a for name, a in zip(reads, args, strict=False) if name in writes] + args[len(reads) :]


def _maker(node: torch.fx.Node) -> torch.fx.Node:
    """The node that allocated the copy which `node` is a version of."""
    while node.target is targets.written:
        run = node.args[0]
        assert isinstance(run, torch.fx.Node)
        names = (*op_of(run).reads, *run.meta["over"])
        if value_of(node) not in names:
            return run
        node = arg_nodes(run)[names.index(value_of(node))]
    return node
