"""From a graph to something that can be called: AOTAutograd, its partitioner, Inductor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import _BoxedCodeGen

from zcompiler.torch_compat.graphs import written_graphs
from zcompiler.torch_compat.nodes import is_random

Callback = Callable[..., Any]


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


def untraced(function: Callback) -> Callback:
    """The function as one that Dynamo never looks into, in a compiled optimizer step for example."""
    return torch.compiler.disable(function)


def compile_apart(module: torch.nn.Module, backend: Callback) -> Callback:
    """torch.compile for one set of sizes, whatever the same functions have been called with in this process. Where
    torch (2.13) can do that, its code does not count against the limit of others for the same functions."""
    known = inspect.signature(torch.compile).parameters
    apart: dict[str, Any] = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    return torch.compile(module, backend=backend, dynamic=False, **apart)


def cause_in_backend(error: BaseException) -> BaseException | None:
    """What a backend has raised, where Dynamo says that it did."""
    return getattr(error, "inner_exception", None)
