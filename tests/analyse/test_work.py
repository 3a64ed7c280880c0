"""The work of regions: matmuls as torch's flop counter has them, bytes as counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from zcompiler.analyse.work import work_of
from zcompiler.machine.work import Matmul, Work
from zcompiler.torch_compat.compiling import inductor_decompositions
from zcompiler.training.registry import records_of

F = torch.nn.functional


def graph(
    function: Callable, *inputs: torch.Tensor, decomposed: bool = False, mode: str = "fake"
) -> torch.fx.GraphModule:
    table = inductor_decompositions() if decomposed else None
    return make_fx(function, tracing_mode=mode, decomposition_table=table)(*inputs)


def flops(work: Work) -> int:
    return sum(m.flops * m.count for m in work.matmuls)


def convolution(transposed: bool = False) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    x = torch.randn(3, 8, 10, 11, requires_grad=True)
    w = torch.randn((8, 12, 3, 5) if transposed else (12, 8, 3, 5), requires_grad=True)
    run = F.conv_transpose2d if transposed else F.conv2d

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(x, w, stride=2).sum(), (x, w))

    return both, (x, w)


def grouped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, stride=2, groups=4)


CASES = {
    "mm": (torch.mm, (torch.randn(3, 5), torch.randn(5, 7))),
    "addmm": (torch.addmm, (torch.randn(7), torch.randn(3, 5), torch.randn(5, 7))),
    "bmm": (torch.bmm, (torch.randn(2, 3, 5), torch.randn(2, 5, 7))),
    "baddbmm": (torch.baddbmm, (torch.randn(2, 3, 7), torch.randn(2, 3, 5), torch.randn(2, 5, 7))),
    "linear": (F.linear, (torch.randn(2, 4, 5), torch.randn(7, 5), torch.randn(7))),
    "convolution": convolution(),
    # torch counts its gradients as if there were no groups
    "convolution-of-groups": (grouped, (torch.randn(3, 8, 10, 11), torch.randn(12, 2, 3, 5))),
    "transposed-convolution": convolution(transposed=True),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_are_those_of_torchs_flop_counter(name: str) -> None:
    function, inputs = CASES[name]
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    assert counter.get_total_flops() > 0
    for fused in (False, True):
        assert flops(work_of(graph(function, *inputs), fused)) == counter.get_total_flops()


def attention(causal: bool, queries: int = 12, keys: int = 16) -> Work:
    q, k, v = (torch.randn(2, 6, long, 8, requires_grad=True) for long in (queries, keys, keys))

    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return out, *torch.autograd.grad(out.sum(), (q, k, v))

    return work_of(graph(both, q, k, v), fused=True)


def test_attention_is_its_products_forward_and_backward() -> None:
    q, k, v = (2, 6, 12, 8), (2, 6, 16, 8), (2, 6, 16, 8)
    expected = sdpa_flop_count(q, k, v) + sdpa_backward_flop_count(q, q, k, v)
    assert flops(attention(causal=False)) == expected
    assert flops(attention(causal=True)) == expected
    assert all(m.attention for m in attention(causal=True).matmuls)


@pytest.mark.parametrize(
    ("queries", "keys", "part"), [(512, 512, 1), (1024, 1024, 3 / 4), (2048, 2048, 5 / 8), (512, 2048, 1 / 4)]
)
def test_causal_attention_skips_blocks_of_keys_behind_every_query(queries: int, keys: int, part: float) -> None:
    assert flops(attention(True, queries, keys)) == part * flops(attention(False, queries, keys))


def test_equal_products_are_counted_and_keep_their_shape_and_dtype() -> None:
    a, b = torch.randn(4, 6, dtype=torch.bfloat16), torch.randn(6, 6, dtype=torch.bfloat16)
    work = work_of(graph(lambda a, b: (a @ b @ b, b.t() @ a.t()), a, b), fused=True)
    assert work == Work((Matmul("bf16", 4, 6, 6, count=2), Matmul("bf16", 6, 4, 6)), moved=0, kernels=3, made=2 * 48)


X = torch.randn(100, 10)  # 4000 B


def test_a_chain_of_elementwise_ops_moves_its_ends_only_when_it_is_fused() -> None:
    chain = graph(lambda x: (x.sin() + 1).cos() * x, X)
    assert work_of(chain, fused=True) == Work((), moved=2 * 4000, kernels=1, made=4000)
    assert work_of(chain, fused=False) == Work((), moved=(2 + 2 + 2 + 3) * 4000, kernels=4, made=4000)


def test_a_reduction_is_fused_with_what_goes_in_and_what_uses_it() -> None:
    norm = graph(lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True)), X)
    assert work_of(norm, fused=True) == Work((), moved=2 * 4000, kernels=1, made=4000)


def test_a_matmul_parts_what_stands_before_it_from_what_comes_after() -> None:
    def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y + (y @ w).cos()  # y cannot stay in registers across the product

    work = work_of(graph(region, X, torch.randn(10, 10)), fused=True)
    assert work == Work((Matmul("f32", 100, 10, 10),), moved=2 * 4000 + 3 * 4000, kernels=3, made=4000)


def test_views_move_nothing_and_a_slice_reads_only_its_part() -> None:
    assert work_of(graph(lambda x: x.t()[2:].unsqueeze(0), X), fused=False) == Work()
    assert work_of(graph(lambda x: x[:25].sin(), X), fused=True) == Work((), moved=2 * 1000, kernels=1, made=1000)
    assert work_of(graph(lambda x: x[:1].expand(50, 10).sin(), X), fused=True) == Work(
        (), 2000 + 2000, kernels=1, made=2000
    )


def test_halves_of_a_tensor_are_read_once_each() -> None:
    assert work_of(graph(lambda x: x[:50] * x[50:], X), fused=True) == Work((), moved=4000 + 2000, kernels=1, made=2000)


def test_a_lookup_reads_as_much_as_it_gives() -> None:
    index = torch.zeros(5, dtype=torch.int64)
    for lookup in (lambda x, i: F.embedding(i, x), lambda x, i: x[i]):
        assert work_of(graph(lookup, X, index), fused=True) == Work((), moved=200 + 40 + 200, kernels=1, made=200)


def test_a_scatter_is_a_kernel_of_its_own() -> None:
    def region(index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(100, 10).index_put((index,), values.sin(), accumulate=True) * 2

    work = work_of(graph(region, torch.zeros(5, dtype=torch.int64), torch.randn(5, 10)), fused=True)
    assert work == Work((), moved=2 * 200 + (40 + 200 + 4000) + 2 * 4000, kernels=3, made=4000)


def test_constants_cost_nothing_where_they_are_used() -> None:
    assert work_of(graph(lambda x: x * torch.ones(100, 10), X), fused=True) == Work(
        (), moved=2 * 4000, kernels=1, made=4000
    )


def test_results_and_large_temporaries_take_new_memory() -> None:
    small = work_of(graph(lambda x: x.sin().cos(), X), fused=False)
    assert small.made == 4000
    large = torch.empty(8 << 20, device="meta")
    assert work_of(graph(lambda x: x.sin().cos().sum(), large), fused=False).made == 2 * (32 << 20) + 4
    assert work_of(graph(lambda x: x.sin().cos().sum(), large), fused=True).made == 4


def test_symbolic_sizes_count_as_their_hints() -> None:
    def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin()

    symbolic = graph(region, X, torch.randn(10, 10), mode="symbolic")
    assert work_of(symbolic, fused=True) == work_of(graph(region, X, torch.randn(10, 10)), fused=True)
    assert work_of(symbolic, fused=True) == Work((Matmul("f32", 100, 10, 10),), moved=2 * 4000, kernels=2, made=4000)


def test_a_decomposed_layer_norm_reads_and_writes_once() -> None:
    weight = torch.randn(10)
    norm = graph(lambda x, w: F.layer_norm(x, (10,), w), X, weight, decomposed=True)
    assert work_of(norm, fused=True) == Work((), moved=2 * 4000 + 40, kernels=1, made=4000)


def test_each_run_of_a_compiled_graph_has_its_work() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
    compiled = torch.compile(model, backend="zinf", options={"memory": "64MiB", "compute": "eager"})
    compiled(torch.randn(4, 16)).sum().backward()
    session = records_of(model.parameters())[0].unit.session
    runs = {op.value for _, op in session.schedules["graph0"].ops() if op.kind == "run"}
    works = session.works["graph0"]
    assert runs == set(works)
    assert sum(map(flops, works.values())) == 5 * 2 * 4 * 16 * 32  # of the first input no gradient is wanted
