"""The most bytes of tensors that were alive at once while something ran, whoever made them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Counts each storage that an operator made while the mode was on, until it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled; by default a mode has it run uncompiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for t in tree_leaves(made):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in given | self._known:
                self._count(t.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.live -= nbytes
