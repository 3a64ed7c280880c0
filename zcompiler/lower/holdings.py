"""Bytes of the tensors a call holds, each storage counted once."""

from __future__ import annotations

import torch


class Holdings:
    """Counts storages by address, so that a view and its base are one."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._freed = 0
        self._held: dict[int, tuple[int, int]] = {}  # address -> how many tensors, bytes

    def add(self, thing: object) -> None:
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            count, size = self._held.get(storage.data_ptr(), (0, storage.nbytes()))
            if count == 0:
                self.nbytes += size
            self._held[storage.data_ptr()] = (count + 1, size)

    def drop(self, thing: object) -> None:
        if isinstance(thing, torch.Tensor):
            address = thing.untyped_storage().data_ptr()
            count, size = self._held.get(address, (0, 0))
            if count > 1:
                self._held[address] = (count - 1, size)
            elif count == 1:
                del self._held[address]
                self.nbytes -= size
                self._freed += size

    def freed(self) -> int:
        """Bytes dropped since the last time this was asked."""
        freed, self._freed = self._freed, 0
        return freed

    def clear(self) -> None:
        self._held.clear()
        self.nbytes = 0
