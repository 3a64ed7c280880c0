"""Tensors: their storages, and those without bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from zcompiler.torch_compat.compiling import Callback
from zcompiler.torch_compat.sizes import size_hint

# Within it, operations on objects of Tensor subclasses do not call `__torch_function__`.
NoSubclasses = torch._C.DisableTorchFunctionSubclass

GRAD_GETTER = vars(torch._C.TensorBase)["grad"].__get__


def is_wrapper(t: torch.Tensor) -> bool:
    """Whether a tensor is made of others (a DTensor, for example) and has no bytes of its own."""
    return is_traceable_wrapper_subclass(t)


def storage_is_shared(t: torch.Tensor) -> bool:
    """Whether another tensor looks into this one's storage: an alias would see nothing of what happens to its copy."""
    return storage_sharers(t) > 0


def storage_sharers(t: torch.Tensor) -> int:
    """How many other tensors look into this one's storage."""
    alone = torch.empty(1)
    users = torch._C._storage_Use_Count
    return users(t.untyped_storage()._cdata) - users(alone.untyped_storage()._cdata)


def held_bytes(tensors: Iterable[torch.Tensor]) -> Callable[[], int]:
    """Tells how many bytes of these strided tensors' storages somebody still holds, whoever it is. Holds none."""
    storages = (t.untyped_storage() for t in tensors)
    watched = {storage.data_ptr(): (StorageWeakRef(storage), storage.nbytes()) for storage in storages}
    return lambda: sum(size for storage, size in watched.values() if not storage.expired())


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


def each_tensor(change: Callback, tree: Any) -> Any:
    """The same tree (dicts, lists, tuples, model outputs) with `change` done to its tensors."""
    return tree_map_only(torch.Tensor, change, tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def strided_like(t: torch.Tensor) -> torch.Tensor:
    """A tensor of this form, and nothing in it; where sizes are symbolic, of what they were when it was captured."""
    shape, strides = [size_hint(n) for n in t.shape], [size_hint(n) for n in t.stride()]
    return torch.empty_strided(shape, strides, dtype=t.dtype, device=t.device)
