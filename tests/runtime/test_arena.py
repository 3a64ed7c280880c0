from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_ext.host import HostArena, HostBuffer

PAGE = 4096


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def test_buffers_are_page_aligned_and_as_long_as_asked() -> None:
    arena = HostArena("host", 16 * PAGE)
    buffers = [arena.alloc(n) for n in (1, PAGE, PAGE + 1)]
    assert [b.array.nbytes for b in buffers] == [b.nbytes for b in buffers] == [1, PAGE, PAGE + 1]
    assert all(b.array.ctypes.data % PAGE == 0 for b in buffers)
    assert arena.in_use == arena.peak == 4 * PAGE


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    arena = HostArena("host", 4 * PAGE)
    arena.alloc(3 * PAGE)
    with pytest.raises(MemoryError, match="host: 8192 B wanted, 12288 B of 16384 B .* longest free piece has 4096"):
        arena.alloc(2 * PAGE)
    assert arena.in_use == 3 * PAGE


def test_the_shortest_piece_that_fits_is_taken() -> None:
    arena = HostArena("host", 10 * PAGE)
    big, wall, small, _ = (arena.alloc(n * PAGE) for n in (4, 1, 2, 3))
    at = small.array.ctypes.data
    big.free()
    small.free()
    assert arena.alloc(2 * PAGE).array.ctypes.data == at
    wall.free()
    assert arena.alloc(5 * PAGE).nbytes == 5 * PAGE


def test_a_fragmented_arena_takes_a_piece_outside_when_allowed() -> None:
    arena = HostArena("host", 3 * PAGE)
    first, _, last = (arena.alloc(PAGE) for _ in range(3))
    first.free()
    last.free()
    with pytest.raises(MemoryError):
        arena.alloc(2 * PAGE)
    outside = arena.alloc(2 * PAGE, overflow=True)
    address = outside.array.ctypes.data
    assert arena.owns(address)
    assert (arena.in_use, arena.peak, arena.overflowed) == (3 * PAGE, 3 * PAGE, 2 * PAGE)
    outside.free()
    assert (arena.in_use, arena.overflowed) == (PAGE, 0)
    assert not arena.owns(address)


def test_freeing_twice_frees_once_and_the_array_is_gone() -> None:
    arena = HostArena("host", 4 * PAGE)
    buffer = arena.alloc(PAGE)
    buffer.free()
    other = arena.alloc(PAGE)
    buffer.free()
    assert arena.in_use == PAGE
    assert buffer.array.nbytes == 0 and other.array.nbytes == PAGE


def test_owns_tells_inside_from_outside() -> None:
    arena = HostArena("host", 2 * PAGE)
    buffer = arena.alloc(2 * PAGE)
    address = buffer.array.ctypes.data
    assert arena.owns(address) and arena.owns(address + 2 * PAGE - 1)
    assert not arena.owns(address + 2 * PAGE)
    assert not arena.owns(np.empty(1).ctypes.data)


def test_the_peak_can_start_anew() -> None:
    arena = HostArena("host", 8 * PAGE)
    arena.alloc(6 * PAGE).free()
    arena.reset_peak()
    arena.alloc(PAGE)
    assert arena.peak == PAGE


def test_trimming_gives_the_memory_of_free_pieces_back_but_for_what_is_kept() -> None:
    size = 32 << 20
    arena = HostArena("host", 2 * size)
    kept, buffer = arena.alloc(size), arena.alloc(size)
    kept.array[:] = 1
    buffer.array[:] = 1
    full = resident_kib()
    buffer.free()
    assert full - resident_kib() < size // 8 // 1024
    arena.trim(keep=size // 2)
    assert size * 0.4 < (full - resident_kib()) * 1024 < size * 0.6
    arena.trim()
    assert (full - resident_kib()) * 1024 > size * 0.9
    assert (kept.array == 1).all()


def test_idle_is_what_was_in_use_and_was_not_given_back() -> None:
    arena = HostArena("host", 8 * PAGE)
    first, second = arena.alloc(3 * PAGE), arena.alloc(2 * PAGE)
    assert arena.idle == 0
    first.free()
    assert arena.idle == 3 * PAGE
    third = arena.alloc(PAGE)
    assert arena.idle == 2 * PAGE
    arena.trim(keep=PAGE)
    assert arena.idle == PAGE
    outside = arena.alloc(5 * PAGE, overflow=True)  # elsewhere; all that is free goes back first
    assert (arena.overflowed, arena.idle) == (5 * PAGE, 0)
    for buffer in (second, third, outside):
        buffer.free()
    assert arena.idle == 3 * PAGE


def test_buffers_outlive_the_arena() -> None:
    arena = HostArena("host", 2 * PAGE)
    buffer = arena.alloc(PAGE)
    arena.close()
    buffer.array[:] = 3
    assert (buffer.array == 3).all()
    buffer.free()
    assert arena.in_use == 0
    with pytest.raises(MemoryError):
        arena.alloc(PAGE)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_memory_is_not_copied_into_a_forked_child() -> None:
    arena = HostArena("host", PAGE)
    address = arena.alloc(PAGE).array.ctypes.data
    child = os.fork()
    if child == 0:
        ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        os._exit(int(any(int(low, 16) <= address < int(high, 16) for low, high in ranges)))
    assert os.waitpid(child, 0)[1] == 0


@given(st.lists(st.tuples(st.integers(0, 5 * PAGE), st.integers(0, 7)), max_size=60))
def test_whatever_is_taken_and_freed_pieces_never_overlap_and_all_comes_back(steps: list[tuple[int, int]]) -> None:
    arena = HostArena("host", 24 * PAGE)
    held: list[tuple[HostBuffer, int]] = []
    for mark, (size, choice) in enumerate(steps):
        if choice < 3 and held:
            buffer, old = held.pop(choice % len(held))
            assert (buffer.array == old % 256).all()
            buffer.free()
            continue
        buffer = arena.alloc(size, overflow=choice == 7) if choice == 7 or fits(arena, size) else arena.alloc(0)
        buffer.array[:] = mark % 256
        held.append((buffer, mark))
        assert arena.in_use == sum(-(-b.nbytes // PAGE) * PAGE for b, _ in held)
    for buffer, old in held:
        assert (buffer.array == old % 256).all()
        buffer.free()
    assert arena.in_use == arena.overflowed == 0
    assert arena.alloc(24 * PAGE).nbytes == 24 * PAGE


def fits(arena: HostArena, size: int) -> bool:
    try:
        arena.alloc(size).free()
    except MemoryError:
        return False
    return True
