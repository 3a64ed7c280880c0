"""Bytes of fake tensors and the working memory of a region."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping
from math import prod

import torch
import torch.fx

from zcompiler.capture.cut import CASTS, is_parameter_view
from zcompiler.torch_compat.sizes import size_at
from zcompiler.torch_compat.tensors import is_wrapper

_DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2",
}  # fmt: skip


class Sizes:
    """How large symbolic sizes are: as when the graph was captured, but for the symbols of `at`, by name."""

    def __init__(self, at: Mapping[str, int] | None = None) -> None:
        self._at = dict(at or {})
        self._known: dict[object, int] = {}  # by expression, of which a graph has few

    def of(self, size: int | torch.SymInt) -> int:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._known:
            self._known[expression] = size_at(size, self._at)
        return self._known[expression]

    def elements(self, t: torch.Tensor) -> int:
        return prod(map(self.of, t.shape))


def nbytes(value: object, sizes: Sizes | None = None) -> int:
    """Bytes of a (fake) tensor as it lies in memory; 0 for anything else. `sizes`: else symbols count as their
    hints."""
    if not isinstance(value, torch.Tensor):
        return 0
    return (sizes or Sizes()).elements(value) * value.element_size()


def is_strided(value: object) -> bool:
    """Whether this is a tensor with an element at each place, not a sparse one."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def is_plain(value: object) -> bool:
    """Whether bytes, dtype, shape and strides are all there is to a tensor (not so where a bit says "negated")."""
    return (
        is_strided(value)
        and isinstance(value, torch.Tensor)
        and not (value.is_conj() or value.is_neg() or value.is_quantized)
        and not is_wrapper(value)
    )


def dtype_name(value: object) -> str:
    """The short name of a tensor's dtype; "int" for a symbolic size, "mixed" for several tensors that differ."""
    if isinstance(value, torch.Tensor):
        return short_name(value.dtype)
    return "int"


def short_name(dtype: torch.dtype) -> str:
    return _DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def common_dtype(values: Iterable[object]) -> str:
    names = {dtype_name(v) for v in values}
    return names.pop() if len(names) == 1 else "mixed"


def shape_of(value: object, sizes: Sizes | None = None) -> tuple[int, ...] | None:
    return tuple(map((sizes or Sizes()).of, value.shape)) if isinstance(value, torch.Tensor) else None


def working_memory(
    region: torch.fx.GraphModule,
    sizes: Sizes | None = None,
    given: Mapping[torch.fx.Node, tuple[Hashable, int]] | None = None,
) -> int:
    """The most bytes a region holds besides its inputs and outputs when it is run node by node.

    A view holds nothing of its own but keeps its base. Fused code holds less, so this is an upper bound for it as
    long as the compiler does not reorder.

    All inputs and outputs count as there from beginning to end, unless there is `given`, for a region that is all
    there is of a phase: then an output counts from where it is made, and the inputs in `given`, by the storage that
    they look into and its bytes, until they are last used.
    """
    nodes = list(region.graph.nodes)
    base: dict[torch.fx.Node, torch.fx.Node] = {}
    first: dict[Hashable, torch.fx.Node] = {}
    for node, (storage, _) in (given or {}).items():
        if first.setdefault(storage, node) is not node:
            base[node] = first[storage]
    for node in nodes:
        if node.op == "call_function" and (node.target is operator.getitem or aliases(node)):
            base[node] = base.get(node.all_input_nodes[0], node.all_input_nodes[0])
    handed_out = {base.get(n, n) for n in nodes[-1].all_input_nodes}
    last_use = {base.get(i, i): node for node in nodes for i in node.all_input_nodes}
    dying: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node, user in last_use.items():
        dying.setdefault(user, []).append(node)
    own = {first[storage]: size for storage, size in (given or {}).values() if first[storage] not in handed_out}
    outside = live = peak = sum(own.values())
    for node in nodes:
        if node.op == "call_function" and node not in base:
            made = result_bytes(node, sizes)
            if node not in handed_out:
                own[node] = made
                live += made
            elif given is not None:
                live += made
                outside += made
            peak = max(peak, live)
        live -= sum(own.pop(dead, 0) for dead in dying.get(node, ()))
    return max(0, peak - outside)


def result_bytes(node: torch.fx.Node, sizes: Sizes | None = None) -> int:
    value = node.meta.get("val")
    return sum(nbytes(v, sizes) for v in value) if isinstance(value, tuple | list) else nbytes(value, sizes)


def aliases(node: torch.fx.Node) -> bool:
    return is_parameter_view(node) and str(node.target) not in CASTS
