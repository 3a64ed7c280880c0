"""What compiling leaves behind: nothing that grows with the depth of the model and that no step needs."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
import torch.fx
from torch import nn
from torch._dynamo.compiled_autograd import _enable

from tests.right.twins import ALL_ON_NVME, with_zinf
from zcompiler.errors import ZinfError
from zcompiler.torch_compat.graphs import call_token, hollow, module_of, written_graphs

WIDTH = 8


def trained(depth: int, disk: Path, **options: object) -> nn.Module:
    """A model after one step: zinf has compiled it, with tries of several choices of activations."""
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)))
    compiled = with_zinf(model, disk, **{"place": ALL_ON_NVME, "memory": "1MiB", "compute": "eager"} | options)
    compiled(torch.ones(4, WIDTH)).sum().backward()
    return compiled


def computing() -> int:
    """Nodes in memory, but for inputs, results and what stands for these."""
    gc.collect()
    nodes = (found for found in gc.get_objects() if type(found) is torch.fx.Node)
    return sum(node.op not in ("placeholder", "output", "root") and node.target != call_token for node in nodes)


@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_no_node_that_computes_is_held_once_all_is_compiled(disk: Path, activations: str) -> None:
    def held(depth: int) -> int:
        torch._dynamo.reset()
        before = computing()
        model = trained(depth, disk, compute="inductor", activations=activations)
        found = computing() - before
        del model
        return found

    held(2)  # Inductor keeps some of its own
    assert held(5) == 0


def test_texts_of_graphs_that_nobody_runs_are_not_kept(disk: Path) -> None:
    """Eager regions are run as Python: a text each."""
    before = set(written_graphs())
    model = trained(4, disk, activations="auto")
    texts = [text for name, text in written_graphs().items() if name not in before]
    layers = [text.count("aten.tanh.default") + text.count("aten.tanh_backward") for text in texts]
    assert set(layers) == {0, 1}, "the graphs of regions, and nothing of more than one layer"
    del model


def test_a_module_of_a_graph_runs_like_any_other() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_method("neg", (x,)))
    assert module_of(nn.Module(), graph)(torch.ones(1)) == -1


def test_a_hollow_graph_has_the_inputs_and_results_of_the_whole_one() -> None:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    middle = graph.call_function(torch.add, (a, b))
    end = graph.call_function(torch.neg, (middle,))
    for node in (a, b, middle, end):
        node.meta["val"] = node.name
    output = graph.output((end, None, b, end))
    output.meta["desc"] = ["first", None, "input", "again"]
    names = [node.name for node in (a, b, end)]
    module = torch.fx.GraphModule(nn.Module(), graph)
    hollow(module)
    made = module.graph
    made.lint()
    (result,) = made.find_nodes(op="output")
    assert [node.name for node in made.nodes if node is not result] == names
    assert [node.meta["val"] for node in made.nodes if node is not result] == names
    first, nothing, given, again = result.args[0]
    assert (first.name, nothing, given.name, again.name) == (end.name, None, b.name, end.name)
    assert result.meta["desc"] == output.meta["desc"]


def test_compiled_autograd_is_refused_as_it_would_run_backward_past_the_plan(disk: Path) -> None:
    torch.compiler.reset()
    model = with_zinf(nn.Linear(WIDTH, WIDTH), disk, place=ALL_ON_NVME)
    refused = pytest.raises(ZinfError, match="do not enable compiled autograd around backward")
    with refused, _enable(torch.compile(backend="eager")):
        model(torch.ones(4, WIDTH)).sum().backward()
    model(torch.ones(4, WIDTH)).sum().backward()
