"""Graphs as Dynamo and AOTAutograd make them, and what they know of where they come from."""

from __future__ import annotations

import torch
import torch.fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput, PlainAOTInput, TangentAOTInput
from torch._guards import CompileContext, detect_fake_mode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.graph_module import _loader

from zcompiler.errors import ZinfError


def dynamo_source(placeholder: torch.fx.Node) -> str:
    """How Dynamo reached this graph input, for example "L['self']._modules['fc']._parameters['weight']"."""
    source = getattr(placeholder, "_dynamo_source", None)
    return source.name if source is not None else placeholder.name


def copy_of_dynamo_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The same with nodes of its own, which know their sources as well."""
    made = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    output = next(iter(graph.find_nodes(op="output")))
    made.output(made.graph_copy(graph, copies)).meta = dict(output.meta)
    for node, copied in copies.items():
        if hasattr(node, "_dynamo_source"):
            copied._dynamo_source = node._dynamo_source
    return made


def module_of(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """The graph as a module. Its Python is written when somebody runs or prints it, which hardly anybody does: torch
    keeps each text that it has ever written, and the regions of a deep model, for each choice of activations, have
    tens of megabytes of it."""
    return _LazyGraphModule(root, graph)


def written_graphs() -> dict[str, str]:
    """The graphs that torch has written as Python, by the name that tracebacks give them: its own dict."""
    return _loader.eval_cache


def dynamo_position(placeholder: torch.fx.Node) -> int | None:
    """Which of Dynamo's graph inputs an AOTAutograd placeholder is; None for tangents and saved intermediates."""
    desc = placeholder.meta.get("desc")
    return desc.idx if isinstance(desc, PlainAOTInput) else None


def frame_in_compilation() -> tuple[int, int]:
    """(which frame Dynamo compiles, how often it has done so before, its inputs being refused by the guards since)."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is None or compile_id.frame_id is None:
        return -1, 0
    return compile_id.frame_id, compile_id.frame_compile_id or 0


def is_tangent(placeholder: torch.fx.Node) -> bool:
    """Whether a placeholder of the backward graph is an incoming gradient."""
    return isinstance(placeholder.meta.get("desc"), TangentAOTInput) or placeholder.name.startswith("tangents")


def call_token_node(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, num_fwd_outputs: int, name: str
) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Add one saved tensor (int64, one element) as forward's first saved output and backward's matching input.

    AOTAutograd expects saved tensors before saved symbolic sizes among forward's outputs, and after them among
    backward's placeholders. Returns the two nodes; neither graph is run as it stands, so the forward node has a
    target that only marks it.
    """
    fake_mode = detect_fake_mode([n.meta.get("val") for n in forward.graph.nodes])
    example = torch.empty(1, dtype=torch.int64)
    value = fake_mode.from_tensor(example) if fake_mode is not None else example
    output = next(iter(forward.graph.find_nodes(op="output")))
    with forward.graph.inserting_before(output):
        token = forward.graph.create_node("call_function", call_token, (), name=name)
    token.meta["val"] = value
    results = list(output.args[0])
    results.insert(num_fwd_outputs, token)
    output.args = (tuple(results),)
    if "desc" in output.meta:
        descs = list(output.meta["desc"])
        descs.insert(num_fwd_outputs, None)
        output.meta["desc"] = descs
    placeholders = backward.graph.find_nodes(op="placeholder")
    first = next((n for n in placeholders if isinstance(n.meta.get("val"), torch.Tensor)), None)
    with backward.graph.inserting_before(first or next(iter(backward.graph.nodes))):
        received = backward.graph.placeholder(name)
    received.meta["val"] = value
    return token, received


def call_token() -> torch.Tensor:
    """Marks the place of a call's token, or of a result, in a graph that is not run as a whole."""
    raise ZinfError(
        "something runs the graph of a model compiled with zinf in zinf's place, as compiled autograd does with "
        "backward: what zinf has planned would not happen. Leave torch._dynamo.config.compiled_autograd off, and do "
        "not enable compiled autograd around backward"
    )


def hollow(graph_module: torch.fx.GraphModule) -> None:
    """Leave only inputs and results of a graph, with their descriptions, and nothing that computes.

    Torch asks for no more of graphs that are not run as they stand (compiled autograd does, and is refused), but holds
    Dynamo's and backward's for good, and copies backward's before it is compiled: of a deep model, thousands of nodes
    with fake tensors and traces of the stack.
    """
    # In a new graph: the old one keeps each node that it has ever named.
    made, output = torch.fx.Graph(), next(iter(graph_module.graph.find_nodes(op="output")))
    copies = {node: made.node_copy(node) for node in graph_module.graph.find_nodes(op="placeholder")}
    for result in output.all_input_nodes:
        if result not in copies:
            copies[result] = made.create_node("call_function", call_token, (), name=result.name)
            copies[result].meta = dict(result.meta)
    made.output(torch.fx.node.map_arg(output.args[0], copies.__getitem__)).meta = dict(output.meta)
    graph_module.graph = made


def changed_inputs(joint: torch.fx.GraphModule) -> frozenset[int]:
    """Which of Dynamo's graph inputs the user's program changes in place."""
    output = next(iter(joint.graph.find_nodes(op="output")))
    changed = (d.mutated_input for d in output.meta["desc"] if isinstance(d, InputMutationAOTOutput))
    return frozenset(i.idx for i in changed if isinstance(i, PlainAOTInput))
