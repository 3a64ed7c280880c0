"""Writes through a mapping are noticed, whoever makes them and however; reads and the store's own writes are not."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runtime_ext.host import HostLane
from runtime_ext.nvme import FileSegment, NvmeStore, Syscalls

PAGE = mmap.PAGESIZE
Bytes = Callable[[int], np.ndarray]


def through_numpy(array: np.ndarray) -> None:
    array[-1] += 1


def through_torch(array: np.ndarray) -> None:
    torch.frombuffer(array, dtype=torch.float32)[5].add_(1)


def through_a_pointer(array: np.ndarray) -> None:
    ctypes.memset(array.ctypes.data + 100, 7, 1)


def by_the_kernel(array: np.ndarray) -> None:
    source, target = os.pipe()
    os.write(target, b"x")
    os.readv(source, [array.data[200:201]])


def by_a_thread(array: np.ndarray) -> None:
    thread = threading.Thread(target=through_numpy, args=(array,))
    thread.start()
    thread.join()


@pytest.fixture
def segment(disk: Path) -> FileSegment:
    return NvmeStore([disk]).create("l0", "param", [3 * PAGE])


@pytest.mark.parametrize("write", [through_numpy, through_torch, through_a_pointer, by_the_kernel, by_a_thread])
def test_every_way_to_write_is_noticed_each_time(segment: FileSegment, write: Callable[[np.ndarray], None]) -> None:
    array = segment.map(0)
    assert segment.edited()
    for _ in range(3):
        segment.watch()
        assert not segment.edited()
        write(array)
        assert segment.edited()
        assert segment.edited()


def test_a_write_is_noticed_after_its_pages_have_gone_to_the_disk_and_out_of_memory(segment: FileSegment) -> None:
    array = segment.map(0)
    segment.watch()
    array[0] = 1
    segment.drop_pages()
    assert segment.edited()
    segment.watch()
    segment.drop_pages()
    assert array[0] == 1
    assert not segment.edited()


def test_reads_and_own_writes_are_no_edits(segment: FileSegment, lane: HostLane, aligned: Bytes) -> None:
    array = segment.map(0)
    segment.watch()
    buffer = aligned(PAGE)
    lane.submit(segment.read(buffer)).wait()
    for event in [lane.submit(segment.write(buffer, at * PAGE)) for at in range(3)]:
        event.wait()
    assert array.sum() == 3 * buffer.sum()
    assert not segment.edited()


def test_an_own_write_does_not_hide_an_edit_before_or_after_it(segment: FileSegment, aligned: Bytes) -> None:
    array = segment.map(0)
    for edit_first in (True, False):
        segment.watch()
        if edit_first:
            array[0] = 1
        for piece in segment.write(aligned(PAGE), PAGE).pieces:
            piece()
        if not edit_first:
            assert not segment.edited()
            array[PAGE] += 1
        assert segment.edited()


def test_a_store_finds_out_whether_the_file_system_tells(disk: Path) -> None:
    def still(descriptor: int) -> Any:
        return SimpleNamespace(st_mtime_ns=0)

    def busy(descriptor: int) -> Any:
        return SimpleNamespace(st_mtime_ns=1)

    assert NvmeStore([disk]).notices_edits()
    for fstat in (still, busy):
        store = NvmeStore([disk], calls=Syscalls(fstat=fstat))
        assert not store.notices_edits()
        assert store._held == {disk: 0}
