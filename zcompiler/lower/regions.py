"""Regions as callables: each distinct region is compiled once, by Inductor or as plain eager code."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from zcompiler.torch_compat.compiling import compile_with_inductor, missing_cxx_compiler, run_eagerly

Boxed = Callable[[list[Any]], Any]


def usable_compute(wanted: str, fallbacks: list[str]) -> str:
    """`wanted`, or "eager" with a warning where Inductor has no C++ compiler to call."""
    if wanted != "inductor" or (why := missing_cxx_compiler()) is None:
        return wanted
    said = f"compute runs eagerly, not through Inductor: {why}. Install g++ or clang++, or say compute='eager'"
    if said not in fallbacks:
        fallbacks.append(said)
        warnings.warn(said, RuntimeWarning, stacklevel=2)
    return "eager"


class RegionCompiler:
    """Compiles regions and remembers them: equal regions (same ops, shapes, strides, dtypes) share one callable."""

    def __init__(self) -> None:
        self._known: dict[str, Boxed] = {}

    @property
    def compiled(self) -> int:
        """How many distinct regions there are so far."""
        return len(self._known)

    def compile(self, module: torch.fx.GraphModule, compute: str, *, is_backward: bool, is_inference: bool) -> Boxed:
        key = f"{compute}:{fingerprint(module)}"
        if key not in self._known:
            if compute == "eager":
                self._known[key] = run_eagerly(module)
            else:
                self._known[key] = compile_with_inductor(module, is_backward=is_backward, is_inference=is_inference)
        return self._known[key]


def fingerprint(module: torch.fx.GraphModule) -> str:
    """What two regions must share to be served by one callable: everything but the names."""
    number: dict[torch.fx.Node, int] = {}
    lines: list[str] = []
    for node in module.graph.nodes:
        number[node] = len(number)
        args = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{number[n]}")
        target = node.target
        if node.op == "placeholder":
            target = ""
        elif node.op == "get_attr":
            target = _constant(module, str(target))
        lines.append(f"{node.op} {target} {args!r} {_described(node.meta.get('val'))}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{value.stride()}{value.device}"
    if isinstance(value, tuple | list):
        return str([_described(v) for v in value])
    return repr(value)


def _constant(module: torch.fx.GraphModule, target: str) -> str:
    """A constant by its content when it is small, else by its identity: sharing is an economy, never a guess."""
    value: Any = module
    for step in target.split("."):
        value = getattr(value, step)
    if isinstance(value, torch.Tensor) and value.numel() <= 64 and type(value) is torch.Tensor:
        return f"{value.dtype}{tuple(value.shape)}{value.tolist()}"
    return f"{target}@{id(value)}"
