"""Every private torch API that zinf touches, in one place, for torch 2.11 to 2.14 (tested on 2.13.0)."""

from __future__ import annotations

import copy
import ctypes
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput, PlainAOTInput, TangentAOTInput
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext, TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import _BoxedCodeGen
from torch.fx.graph_module import _loader
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointPolicy

from zcompiler.errors import ZinfError

Callback = Callable[..., Any]

# Within it, operations on objects of Tensor subclasses do not call `__torch_function__`.
NoSubclasses = torch._C.DisableTorchFunctionSubclass
GRAD_GETTER = vars(torch._C.TensorBase)["grad"].__get__

_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, other C libraries need not


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


def is_random(node: torch.fx.Node) -> bool:
    """Whether the node draws from the random stream when it runs.

    Of Inductor's own operators only the one that makes the seeds does; the others compute from a seed.
    """
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        from_seed = ("inductor_random", "inductor_randint", "inductor_lookup_seed")
        return torch.Tag.nondeterministic_seeded in target.tags and not any(name in target.name() for name in from_seed)
    return isinstance(target, torch._ops.HigherOrderOperator) and "rng" in target.name()


def is_view_op(node: torch.fx.Node) -> bool:
    """Whether the node's operator says that its results look into its first tensor, and writes nothing."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def is_known_and_pure(node: torch.fx.Node) -> bool:
    """Whether the node is an operator of torch's own that writes to none of its inputs."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in ("aten", "prims")
        and not target._schema.is_mutable
    )


def is_wrapper(t: torch.Tensor) -> bool:
    """Whether a tensor is made of others (a DTensor, for example) and has no bytes of its own."""
    return is_traceable_wrapper_subclass(t)


def seed_lookup_targets() -> frozenset[Any]:
    """Inductor's seed lookups: the layer's number is in them, so they stay out of the layers, or no two were equal."""
    import torch._inductor.inductor_prims as prims

    return frozenset({torch.ops.prims.inductor_lookup_seed.default, prims.lookup_seed})


def inductor_decompositions() -> Any:
    """The operators that Inductor wants taken apart before it sees a graph, and into what."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def trace(function: Callback, inputs: Sequence[torch.fx.Node], inductor: bool) -> torch.fx.GraphModule:
    """The function as a graph of aten nodes, made with the fake tensors of these nodes; with Inductor's decompositions
    if wanted. Neither autograd nor autocast has a part in it."""
    values = [n.meta["val"] for n in inputs]
    fake_mode = detect_fake_mode(values)
    table = inductor_decompositions() if inductor else {}
    with torch.no_grad(), torch._C._DisableAutocast(), fake_mode or nullcontext():
        traced = make_fx(function, table)(*values)
    traced.graph.eliminate_dead_code()
    return traced


def compile_through_aot(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Callback,
    backward: Callback,
    inference: Callback,
    partition: Callback,
    inductor: bool,
) -> Callback:
    """Run AOTAutograd with our stages. Mutations stay outside the graph, where they reach the user's own tensors."""
    kwargs: dict[str, Any] = {}
    if inductor:
        kwargs["decompositions"] = inductor_decompositions()
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=False,
        **kwargs,
    )
    # A saved tensor must survive backward(retain_graph=True); donated buffers would not.
    with functorch_config.patch(donated_buffer=False):
        return backend(graph_module, inputs)


def give_no_buffers_away() -> None:
    """Say that backward may run again over what it was given; called while the forward graph is compiled.

    AOTAutograd leaves this open where donated buffers are switched off at compile time only, and then refuses a
    second backward.
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def run_last(optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """Move a pre-step hook of an optimizer behind those that others registered since."""
    optimizer._optimizer_step_pre_hooks.move_to_end(handle.id)  # type: ignore[attr-defined]


def run_first(optimizer: torch.optim.Optimizer, handle: Any) -> None:
    """Move a post-step hook of an optimizer before all others."""
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]


def partition_joint(
    joint: torch.fx.GraphModule, inputs: Any, *, inductor: bool, **kwargs: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The stock min-cut partition. For Inductor `joint_passes` has been run on the graph."""
    before = set(written_graphs())
    try:
        return _partition_joint(joint, inputs, inductor, **kwargs)
    finally:
        # It writes each graph as Python, for nobody, and torch keeps every text: there is one for each choice.
        for name in set(written_graphs()) - before:
            del written_graphs()[name]


def _partition_joint(
    joint: torch.fx.GraphModule, inputs: Any, inductor: bool, **kwargs: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    if not inductor:
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)
    from torch._inductor import config
    from torch._inductor.compile_fx import partition_fn
    from torch._inductor.virtualized import V

    context = TracingContext.try_get()
    # partition_fn would run them again: they are most of its time, and it is asked for each choice of activations.
    with V.set_fake_mode(context.fake_mode if context else None), config.patch(use_joint_graph_passes=False):
        return partition_fn(joint, inputs, **kwargs)


def joint_passes(graph_module: torch.fx.GraphModule, inputs: Any = None) -> torch.fx.GraphModule:
    """The graph after Inductor's joint-graph passes; `inputs` are those of a joint graph, None without a backward."""
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, get_cuda_device_context, get_inputs_devices
    from torch._inductor.virtualized import V

    with V.set_fake_mode(detect_fake_mode([n.meta.get("val") for n in graph_module.graph.nodes])):
        if inputs is None:
            return _recursive_joint_graph_passes(graph_module)
        # As stock Inductor does it: a higher-order operator's own graph was partitioned before, with its passes.
        device = next(iter(get_inputs_devices(inputs, graph_module)))
        before = set(graph_module.graph.nodes)
        with get_cuda_device_context(graph_module):
            made = _recursive_joint_graph_passes(graph_module, skip_invoke_subgraph=True, input_device=device)
    # Of several nodes that stand for others, torch tells only of the last of which module they are.
    for node in reversed(made.graph.nodes):
        if node in before or node.op != "call_function" or node.meta.get("nn_module_stack") or is_random(node):
            continue
        stack = next((found for user in node.users if (found := user.meta.get("nn_module_stack"))), None)
        if stack is not None:
            node.meta["nn_module_stack"] = stack
    return made


def changed_inputs(joint: torch.fx.GraphModule) -> frozenset[int]:
    """Which of Dynamo's graph inputs the user's program changes in place."""
    output = next(iter(joint.graph.find_nodes(op="output")))
    changed = (d.mutated_input for d in output.meta["desc"] if isinstance(d, InputMutationAOTOutput))
    return frozenset(i.idx for i in changed if isinstance(i, PlainAOTInput))


def never_recompute(node: torch.fx.Node) -> None:
    """Tell the partitioner to save this node if backward needs it, unless the user wants it computed again."""
    node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def recompute_in_backward(node: torch.fx.Node) -> None:
    """Tell the partitioner never to save this node.

    What torch.utils.checkpoint marks has a number for each block, and a node is saved after all if a block of a higher
    number uses it: it then counts as that block's input.
    """
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    node.meta["ac_graph_id"] = sys.maxsize


def run_eagerly(graph_module: torch.fx.GraphModule) -> Callback:
    """The graph as boxed Python that runs nodes in order and frees each value after its last use."""
    graph_module.graph.set_codegen(_BoxedCodeGen())
    graph_module.recompile()
    _LazyGraphModule.force_recompile(graph_module)
    return graph_module.forward


def compile_with_inductor(graph_module: torch.fx.GraphModule, *, is_backward: bool, is_inference: bool) -> Callback:
    """The graph compiled by Inductor, boxed. All its outputs keep their strides."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    examples = [n.meta["val"] for n in graph_module.graph.find_nodes(op="placeholder")]
    fake_mode = detect_fake_mode([n.meta.get("val") for n in graph_module.graph.nodes])
    # A fresh context: the ambient one describes the whole graph, and Inductor would donate the wrong inputs.
    with tracing(TracingContext(fake_mode)), V.set_fake_mode(fake_mode) if fake_mode else nullcontext():
        return compile_fx_inner(
            graph_module, examples, static_input_idxs=(), is_backward=is_backward, is_inference=is_inference
        )


def nodes_of_sizes(graph: torch.fx.Graph, inputs: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The placeholders of the graph for the symbols in the shapes of `inputs`, but for those that are among these.

    Inductor expects a graph to be given them, as AOTAutograd does: it cannot tell s from a tensor of 2*s rows, and the
    guards of what it has cached are about the sizes that it is given.
    """
    from torch.fx.experimental.symbolic_shapes import free_symbols

    wanted = set()
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes = [size for size in (*value.shape, *value.stride()) if isinstance(size, torch.SymInt)]
            wanted |= {s for size in sizes for s in free_symbols(size)}
    if not wanted:
        return []
    of_size = (n for n in graph.find_nodes(op="placeholder") if isinstance(n.meta.get("val"), torch.SymInt))
    return [n for n in of_size if n.meta["val"].node.expr in wanted and n not in inputs]


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """A call's arguments by the names in the operator's schema, defaults included."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given: dict[str, Any] = {}
    for i, argument in enumerate(node.target._schema.arguments):
        if i < len(node.args):
            given[argument.name] = node.args[i]
        else:
            given[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return given


def operator_name(node: torch.fx.Node) -> str:
    """`add` of `aten.add.Tensor`; empty for what is no operator of the dispatcher."""
    target = node.target
    return target.name().split("::")[1].split(".")[0] if isinstance(target, torch._ops.OpOverload) else ""


def size_hint(size: int | torch.SymInt) -> int:
    """A size as a number: itself, or what it was when the graph was captured."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 1


def size_at(size: torch.SymInt, at: Mapping[str, int]) -> int:
    """A symbolic size with the symbols of `at`, by name, at these values, and others as they were."""
    expression = size.node.expr
    hints = size.node.shape_env.backed_var_to_val
    values = {s: at.get(str(s), hints.get(s)) for s in expression.free_symbols}
    if None in values.values():  # not known before it runs
        return size_hint(size)
    return int(expression.xreplace({s: sympy.Integer(n) for s, n in values.items()}))


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may change from call to call: `what` it is, as Python says it; its number `now`; and `size`, a size
    with it."""

    name: str
    what: str
    now: int
    size: torch.SymInt


def symbols_of(values: Iterable[object]) -> dict[str, Symbol]:
    """The symbols, by name, in the shapes of these values whose numbers are known before a call."""
    found: dict[str, Symbol] = {}
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if not isinstance(size, torch.SymInt):
                continue
            env = size.node.shape_env
            for symbol in sorted(size.node.expr.free_symbols, key=str):
                if (now := env.backed_var_to_val.get(symbol)) is not None and str(symbol) not in found:
                    sources = [source.name for source in env.var_to_sources.get(symbol, ())]
                    found[str(symbol)] = Symbol(str(symbol), (sources or [str(symbol)])[0], int(now), size)
    return found


def guard_at_most(symbol: Symbol, most: int) -> None:
    """Have Dynamo use the graph in compilation only where a symbol is at most that: beyond, it compiles anew."""
    (found,) = (s for s in symbol.size.node.expr.free_symbols if str(s) == symbol.name)
    symbol.size.node.shape_env.evaluate_expr(found <= most)


def cxx_compiler() -> str:
    """The C++ compiler that Inductor calls. FileNotFoundError where there is none that it can call."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return get_cpp_compiler()
    except (InvalidCxxCompiler, OSError) as error:
        raise FileNotFoundError(str(error).split("\n", 1)[0] or type(error).__name__) from error


def missing_cxx_compiler() -> str | None:
    """Why Inductor could not compile for the CPU here, or None if it can."""
    try:
        cxx_compiler()
    except FileNotFoundError as error:
        return str(error)
    return None


def storage_is_shared(t: torch.Tensor) -> bool:
    """Whether another tensor looks into this one's storage: an alias would see nothing of what happens to its copy."""
    return storage_sharers(t) > 0


def storage_sharers(t: torch.Tensor) -> int:
    """How many other tensors look into this one's storage."""
    alone = torch.empty(1)
    users = torch._C._storage_Use_Count
    return users(t.untyped_storage()._cdata) - users(alone.untyped_storage()._cdata)


def untraced(function: Callback) -> Callback:
    """The function as one that Dynamo never looks into, in a compiled optimizer step for example."""
    return torch.compiler.disable(function)


def trim_memory() -> None:
    """Give freed heap memory back to the system, where the C library can."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


# What an operation raises whose result hangs on values that a fake tensor has not.
NO_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def shapes_only() -> Any:
    """A mode in which tensors have everything but bytes: those made in it, and those it made from others."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(t: torch.Tensor) -> bool:
    """Whether a tensor has no bytes, whatever its device says."""
    return isinstance(t, FakeTensor) or t.device.type == "meta"


def without_bytes(t: torch.Tensor, mode: Any) -> torch.Tensor:
    """What a tensor is to `mode`, on the CPU if it has no bytes yet: its storage, if it is shared, stays so for others
    with bytes."""
    if not is_fake(t) and type(t) in (torch.Tensor, torch.nn.Parameter):
        return mode.from_tensor(t, static_shapes=True)
    device = "cpu" if is_fake(t) else t.device
    with mode, torch.no_grad():
        fake = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
        if isinstance(t, torch.nn.Parameter):
            return torch.nn.Parameter(fake, t.requires_grad)
    return fake.requires_grad_(t.requires_grad)


def copy_without_bytes(module: torch.nn.Module, mode: Any) -> tuple[torch.nn.Module, dict[int, torch.Tensor]]:
    """A copy of a module whose tensors have no bytes, and what each parameter is a copy of, by id."""
    own = {id(t): t for t in (*module.parameters(), *module.buffers())}
    memo: dict[int, Any] = {key: without_bytes(t, mode) for key, t in own.items()}
    sources = {id(memo[key]): t for key, t in own.items()}
    with FakeCopyMode(mode):
        return copy.deepcopy(module, memo), sources


def compile_apart(module: torch.nn.Module, backend: Callback) -> Callback:
    """torch.compile for one set of sizes, whatever the same functions have been called with in this process. Where
    torch (2.13) can do that, its code does not count against the limit of others for the same functions."""
    known = inspect.signature(torch.compile).parameters
    apart: dict[str, Any] = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    return torch.compile(module, backend=backend, dynamic=False, **apart)


def each_tensor(change: Callback, tree: Any) -> Any:
    """The same tree (dicts, lists, tuples, model outputs) with `change` done to its tensors."""
    return tree_map_only(torch.Tensor, change, tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def cause_in_backend(error: BaseException) -> BaseException | None:
    """What a backend has raised, where Dynamo says that it did."""
    return getattr(error, "inner_exception", None)


def strided_like(t: torch.Tensor) -> torch.Tensor:
    """A tensor of this form, and nothing in it; where sizes are symbolic, of what they were when it was captured."""
    shape, strides = [size_hint(n) for n in t.shape], [size_hint(n) for n in t.stride()]
    return torch.empty_strided(shape, strides, dtype=t.dtype, device=t.device)
