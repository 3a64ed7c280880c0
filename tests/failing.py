"""A disk whose transfers move less than was wanted, when a test says so."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from runtime_ext.nvme import NvmeStore
from runtime_ext.nvme.files import Syscalls


@dataclass
class Disk:
    """The calls of a store. The next transfers of the kind named in `fails` move less than was wanted."""

    fails: set[str] = field(default_factory=set)

    def preadv(self, descriptor: int, buffers: Any, offset: int) -> int:
        if "read" in self.fails:
            return os.preadv(descriptor, [buffers[0][:512]], offset)
        return os.preadv(descriptor, buffers, offset)

    def pwritev(self, descriptor: int, buffers: Any, offset: int) -> int:
        if "write" in self.fails:
            return os.pwritev(descriptor, [buffers[0][:512]], offset)
        return os.pwritev(descriptor, buffers, offset)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Every store made in the test goes through this disk."""
    disk = Disk()
    calls = Syscalls(preadv=disk.preadv, pwritev=disk.pwritev)
    monkeypatch.setattr("zcompiler.training.session.NvmeStore", partial(NvmeStore, calls=calls))
    return disk
