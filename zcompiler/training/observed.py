"""Parameters, gradients and optimizer states whose looks from outside first wait for an update that still runs.

Nothing else is different about them: a parameter's values come from its mapped storage as before. Python is asked
before each operation on an object of these classes (`__torch_function__`), and that is where the waiting is.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zcompiler.torch_compat.tensors import GRAD_GETTER, NoSubclasses
from zcompiler.training.registry import running_updates, settle

_GETTERS = [
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "is_leaf",
    "grad_fn",
    "ndim",
    "layout",
    "names",
    "itemsize",
    "nbytes",
    "output_nr",
    "retains_grad",
    "is_sparse",
    "is_quantized",
    "is_meta",
    "is_nested",
    "is_mkldnn",
    "is_cpu",
    "is_cuda",
    "is_xpu",
    "is_mps",
    "_version",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
]
_SETTERS = ["requires_grad", "grad", "_backward_hooks", "_post_accumulate_grad_hooks"]
_METHODS = [
    "size",
    "stride",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "element_size",
    "storage_offset",
    "is_contiguous",
    "is_floating_point",
    "is_complex",
    "is_signed",
    "is_conj",
    "is_neg",
    "is_inference",
    "is_same_size",
    "is_shared",
    "get_device",
    "requires_grad_",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "__hash__",
    "__len__",
    "_is_view",
]
_FUNCTIONS = [
    "is_floating_point",
    "is_complex",
    "is_signed",
    "is_conj",
    "is_neg",
    "is_inference",
    "is_same_size",
    "numel",
]
# What tells nothing of the values and hands nothing out that could.
_HARMLESS = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in _GETTERS if hasattr(torch.Tensor, name)),
        *(getattr(torch.Tensor, name).__set__ for name in _SETTERS),
        *(getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name)),
        *(getattr(torch, name) for name in _FUNCTIONS),
    ]
)


class _EqualToParameter(type(torch.nn.Parameter)):  # type: ignore[misc]
    """As a class the same as Parameter to whoever compares or looks classes up: tracers treat the two alike."""

    def __eq__(cls, other: object) -> bool:
        return cls is other or other is torch.nn.Parameter

    def __hash__(cls) -> int:
        return hash(torch.nn.Parameter)


class ObservedParameter(torch.nn.Parameter, metaclass=_EqualToParameter):
    """A Parameter in every respect, but for the waiting."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A tracer looks at no values, and compute would not be the same while it works (see late.py).
        if running_updates() and func not in _HARMLESS and not torch.compiler.is_compiling():
            if func == GRAD_GETTER:
                with NoSubclasses():
                    return _observed_gradient(func(*args))
            settle()
        with NoSubclasses():
            return func(*args, **(kwargs or {}))

    def detach(self) -> torch.Tensor:
        """A Tensor; but `Parameter(p)` takes from anything but the two classes it knows only its own class again."""
        detached = super().detach()
        if sys._getframe(1).f_code is torch.nn.Parameter.__new__.__code__:
            detached.__class__ = type(self)
        return detached

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        settle()
        with NoSubclasses():
            return repr(torch.nn.Parameter(self.data, self.requires_grad))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        if id(self) not in memo:
            settle()
            with NoSubclasses():
                data = self.data.clone(memory_format=torch.preserve_format)
                memo[id(self)] = torch.nn.Parameter(data, self.requires_grad)
        return memo[id(self)]


# Printed and pickled by name.
for _name in ("__name__", "__qualname__", "__module__", "__doc__"):
    setattr(ObservedParameter, _name, getattr(torch.nn.Parameter, _name))


class ObservedGradient(torch.Tensor):
    """A gradient that an update still needs; whatever is done with it waits for the end of that."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _HARMLESS:
            settle()
        with NoSubclasses():
            return func(*args, **(kwargs or {}))


def _observed_gradient(grad: torch.Tensor | None) -> torch.Tensor | None:
    needed = grad is not None and any(update.needs(grad) for update in running_updates())
    return grad.as_subclass(ObservedGradient) if grad is not None and needed else grad


def observe(p: torch.Tensor) -> None:
    """Let looks at this parameter wait for updates that still run.

    Dynamo guards on the class, so for the first graph of a frame this belongs before its guards are made.
    """
    if type(p) is torch.nn.Parameter:
        p.__class__ = ObservedParameter


def leave_alone(p: torch.Tensor) -> None:
    """Make it an ordinary Parameter again."""
    if type(p) is ObservedParameter:
        p.__class__ = torch.nn.Parameter  # type: ignore[assignment]


class ObservedStates(defaultdict[torch.Tensor, dict[str, Any]]):
    """An optimizer's `state`: a look at it waits as well."""

    def __getitem__(self, key: torch.Tensor) -> dict[str, Any]:
        settle()
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[torch.Tensor]:
        settle()
        return super().__iter__()

    def get(self, key: torch.Tensor, default: Any = None) -> Any:
        settle()
        return super().get(key, default)

    def items(self) -> Any:
        settle()
        return super().items()

    def values(self) -> Any:
        settle()
        return super().values()

    def pop(self, *args: Any) -> Any:
        settle()
        return super().pop(*args)

    def __reduce__(self) -> Any:
        settle()
        return defaultdict(dict, self).__reduce__()
