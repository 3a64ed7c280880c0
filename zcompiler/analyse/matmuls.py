"""The matrix products inside an aten op: matmuls, convolutions and attention, forward and backward.

Formulas as in torch.utils.flop_counter, but that causal attention leaves out the blocks of keys that its kernel on a
CPU leaves out.
"""

from __future__ import annotations

from math import prod

import torch
import torch.fx

from zcompiler.analyse.sizes import dtype_name, shape_of
from zcompiler.machine.work import Matmul
from zcompiler.torch_compat.nodes import arguments_of, operator_name

Shape = tuple[int, ...]

# Keys that torch's kernel of attention on a CPU takes at a time: it skips a block that lies behind every query.
KEY_BLOCK = 512


def matmuls_of(node: torch.fx.Node) -> list[Matmul] | None:
    """The products of a node with fake values, by shape; None for an op that is not made of matmuls."""
    name = operator_name(node)
    if not name:
        return None
    given = arguments_of(node)
    if name in _PLAIN:
        a, b = (_shape(given[key]) for key in _PLAIN[name])
        return [_product(_dtype(given[_PLAIN[name][0]]), a, b)]
    if name == "convolution":
        return _convolution(given, _shape(given["input"]), _shape(node))
    if name == "convolution_backward":
        return _convolution_backward(given)
    if name.startswith("_scaled_dot_product"):
        return _attention(given, "backward" in name)
    return None


# The two factors, by the names of their arguments.
_PLAIN = {
    "mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2"), "baddbmm": ("batch1", "batch2"),
    "_scaled_mm": ("self", "mat2"), "_int_mm": ("self", "mat2"),
}  # fmt: skip


def _product(dtype: str, a: Shape, b: Shape, batch: int = 1) -> Matmul:
    """[..., m, k] @ [..., k, n]."""
    return Matmul(dtype, a[-2], b[-1], a[-1], batch * prod(a[:-2]))


def _convolution(given: dict[str, object], x: Shape, out: Shape) -> list[Matmul]:
    """For each place of the output (of the input, where it is transposed) the filter times what it covers."""
    (wide, narrow, *window), groups = _shape(given["weight"]), _number(given["groups"])
    places = prod((x if given["transposed"] else out)[2:]) * x[0]
    return [Matmul(_dtype(given["weight"]), places, wide // groups, narrow * prod(window), groups)]


def _convolution_backward(given: dict[str, object]) -> list[Matmul]:
    """The gradients of the input and of the weight that are asked for take as much as the forward each."""
    (wide, narrow, *window), groups = _shape(given["weight"]), _number(given["groups"])
    x, grad, dtype = _shape(given["input"]), _shape(given["grad_output"]), _dtype(given["weight"])
    places = prod((x if given["transposed"] else grad)[2:]) * x[0]
    wanted = given["output_mask"]
    assert isinstance(wanted, (list, tuple))
    found = []
    if wanted[0]:
        found.append(Matmul(dtype, places, narrow * prod(window), wide // groups, groups))
    if wanted[1]:
        found.append(Matmul(dtype, wide // groups, narrow * prod(window), places, groups))
    return found


def _attention(given: dict[str, object], backward: bool) -> list[Matmul]:
    """Scores, and scores times values; backward makes the scores again and then four products of their size."""
    query = given["query"]
    q, k, v = (_shape(given[key]) for key in ("query", "key", "value"))
    dtype, heads, long, wide = _dtype(query), prod(q[:-2]), k[-2], v[-1]
    rows, deep = q[-2:]
    if given.get("is_causal"):
        long = _keys_seen(rows, long)
    shapes = [(rows, long, deep)]  # the scores
    if not backward:
        shapes.append((rows, wide, long))
    else:
        shapes += [
            (rows, long, wide),  # of the scores
            (long, wide, rows),  # of the values
            (rows, deep, long),  # of the queries
            (long, deep, rows),  # of the keys
        ]
    return [Matmul(dtype, *shape, batch=heads, attention=True) for shape in shapes]


def _keys_seen(rows: int, keys: int) -> int:
    """How many of the keys a row of causal attention is multiplied with on average, in whole blocks."""
    seen = sum(
        min(first + KEY_BLOCK, keys) * (min(first + KEY_BLOCK, rows) - first) for first in range(0, rows, KEY_BLOCK)
    )
    return -(-seen // max(1, rows))


def _value(argument: object) -> object:
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument


def _shape(argument: object) -> Shape:
    shape = shape_of(_value(argument))
    if shape is None:
        raise TypeError(f"{argument} is no tensor: a product of unknown shape")
    return shape


def _dtype(argument: object) -> str:
    return dtype_name(_value(argument))


def _number(argument: object) -> int:
    assert isinstance(argument, int)
    return argument
