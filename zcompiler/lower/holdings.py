"""Bytes of the tensors a call holds, each storage counted once."""

from __future__ import annotations

import torch


def address(thing: object) -> int | None:
    """Where a tensor's elements lie; None for what has no elements or no one place (sparse tensors, numbers)."""
    if isinstance(thing, torch.Tensor) and thing.layout is torch.strided and thing.numel():
        return thing.data_ptr()
    return None


class Holdings:
    """Counts storages by address, so that a view and its base are one."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._freed = 0
        self._held: dict[int, tuple[int, int]] = {}  # address -> how many tensors, bytes

    def add(self, thing: object) -> None:
        if isinstance(thing, torch.Tensor) and thing.layout is torch.strided:
            storage = thing.untyped_storage()
            count, size = self._held.get(storage.data_ptr(), (0, storage.nbytes()))
            if count == 0:
                self.nbytes += size
            self._held[storage.data_ptr()] = (count + 1, size)

    def drop(self, thing: object) -> None:
        if isinstance(thing, torch.Tensor) and thing.layout is torch.strided:
            place = thing.untyped_storage().data_ptr()
            count, size = self._held.get(place, (0, 0))
            if count > 1:
                self._held[place] = (count - 1, size)
            elif count == 1:
                del self._held[place]
                self.nbytes -= size
                self._freed += size

    def freed(self) -> int:
        """Bytes dropped since the last time this was asked."""
        freed, self._freed = self._freed, 0
        return freed

    def clear(self) -> None:
        self._held.clear()
        self.nbytes = 0
