from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime_ext.host import HostLane
from runtime_ext.interface import Work
from runtime_ext.nvme import FileSegment, NvmeStore, StoreError, Syscalls
from runtime_ext.nvme.segment import CHUNK

Bytes = Callable[[int], np.ndarray]


def do(work: Work) -> None:
    for piece in work.pieces:
        piece()


def filled(array: np.ndarray, seed: int = 0) -> np.ndarray:
    array[:] = np.random.default_rng(seed).integers(0, 256, array.size, dtype=np.uint8)
    return array


def a_segment(disk: Path, nbytes: int = 8192, **calls: Any) -> FileSegment:
    return NvmeStore([disk], calls=Syscalls(**calls)).create("l0", "param", [nbytes])


@pytest.mark.parametrize("elements", [1, 3, 127, 513, 4097, 1048577])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_come_back_bitwise(
    disk: Path, lane: HostLane, aligned: Bytes, elements: int, dtype: torch.dtype
) -> None:
    tensors = [torch.randn(elements).to(dtype), torch.randn(3).to(dtype)]
    sizes = [t.numel() * t.element_size() for t in tensors]
    segment = NvmeStore([disk]).create("l0", "param", sizes)
    source, into = aligned(segment.nbytes), aligned(segment.nbytes)
    for tensor, offset, size in zip(tensors, segment.offsets, segment.sizes, strict=True):
        source[offset : offset + size] = tensor.view(torch.uint8).numpy()
    written = lane.submit(segment.write(source))
    lane.submit(segment.read(into), after=[written]).wait()
    for slot, (tensor, offset, size) in enumerate(zip(tensors, segment.offsets, segment.sizes, strict=True)):
        assert torch.equal(torch.frombuffer(into[offset : offset + size], dtype=dtype), tensor)
        assert torch.equal(torch.frombuffer(segment.map(slot), dtype=dtype), tensor)
    assert segment.bytes_read == segment.bytes_written == segment.nbytes


def test_a_part_is_read_and_written_where_it_belongs(disk: Path, aligned: Bytes) -> None:
    segment = a_segment(disk, 4 * 4096)
    whole = filled(aligned(4 * 4096))
    do(segment.write(whole))
    part = filled(aligned(4096), seed=1)
    do(segment.write(part, start=8192))
    whole[8192:12288] = part
    into = aligned(8192)
    do(segment.read(into, start=4096))
    np.testing.assert_array_equal(into, whole[4096:12288])


def test_new_segments_are_zero(disk: Path, aligned: Bytes) -> None:
    into = filled(aligned(8192))
    do(a_segment(disk).read(into))
    assert not into.any()


def test_mapping_and_direct_io_see_each_other_in_both_directions(disk: Path, aligned: Bytes) -> None:
    segment = a_segment(disk, 3 * 4096)
    mapped, buffer, into = segment.map(0), aligned(3 * 4096), aligned(3 * 4096)
    for seed in range(20):
        do(segment.write(filled(buffer, seed)))
        np.testing.assert_array_equal(mapped, buffer)
        filled(mapped, seed + 1000)
        if seed % 2:
            segment.drop_pages()
        do(segment.read(into))
        np.testing.assert_array_equal(into, mapped)


def test_dropping_pages_gives_memory_back_and_keeps_what_was_written_through_the_mapping(disk: Path) -> None:
    size = 16 << 20
    segment = a_segment(disk, size)
    mapped = segment.map(0)
    mapped[:] = 7
    before = resident_file_kib()
    segment.drop_pages()
    assert before - resident_file_kib() > size * 0.9 / 1024
    assert (mapped == 7).all()


def resident_file_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssFile")).split()[1])


def test_slots_of_no_bytes_are_empty_arrays(disk: Path) -> None:
    segment = NvmeStore([disk]).create("l0", "grad", [0, 5, 0])
    assert segment.offsets == (0, 0, 4096)
    assert segment.nbytes == 4096
    assert [segment.map(i).nbytes for i in range(3)] == [0, 5, 0]


def test_a_segment_of_no_bytes_can_be_used(disk: Path, lane: HostLane, aligned: Bytes) -> None:
    segment = NvmeStore([disk]).create("l0", "grad", [])
    lane.submit(segment.write(aligned(0))).wait()
    lane.submit(segment.read(aligned(0))).wait()
    segment.drop_pages()
    assert segment.generation == 1


def test_the_generation_rises_once_a_write_is_complete(disk: Path, aligned: Bytes) -> None:
    segment = a_segment(disk, 2 * CHUNK)
    first, second = segment.write(aligned(2 * CHUNK)).pieces
    second()
    assert segment.generation == 0
    first()
    assert segment.generation == 1
    do(segment.read(aligned(CHUNK)))
    assert segment.generation == 1


def test_mapped_arrays_outlive_segment_and_store(disk: Path) -> None:
    store = NvmeStore([disk])
    mapped = store.create("l0", "param", [4096]).map(0)
    store.close()
    mapped[:] = 9
    assert (mapped == 9).all()


def test_a_closed_segment_refuses_instead_of_touching_another_file(disk: Path, aligned: Bytes) -> None:
    segment = a_segment(disk)
    late = segment.write(aligned(8192))
    segment.close()
    segment.close()
    with pytest.raises(StoreError, match="segment l0 .* is closed"):
        do(late)


def test_closing_waits_for_a_piece_under_way(disk: Path, aligned: Bytes) -> None:
    closing: list[FileSegment] = []

    def close_then_write(descriptor: int, parts: Any, at: int) -> int:
        for segment in closing:
            segment.close()
        return Syscalls().pwritev(descriptor, parts, at)

    segment = a_segment(disk, pwritev=close_then_write)
    closing.append(segment)
    do(segment.write(aligned(8192)))
    assert segment.bytes_written == 8192


@pytest.mark.parametrize(
    ("nbytes", "start", "why"),
    [
        (8192, 4096, "bytes 4096 to 12288 are outside its 8192 B"),
        (4096, -4096, "outside"),
        (100, 0, "must be multiples of 4096"),
        (4096, 512, "must be multiples of 4096"),
    ],
)
def test_ranges_that_cannot_be_moved_are_refused_when_asked_for(
    disk: Path, aligned: Bytes, nbytes: int, start: int, why: str
) -> None:
    segment = a_segment(disk)
    for verb in (segment.read, segment.write):
        with pytest.raises(ValueError, match=f"segment l0 .*{why}"):
            verb(aligned(nbytes), start)


def test_memory_off_the_page_is_refused(disk: Path, aligned: Bytes) -> None:
    with pytest.raises(ValueError, match="address"):
        a_segment(disk).read(aligned(8192)[512 : 512 + 4096])


@pytest.mark.parametrize("got", [0, 1000])
@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_short_transfer_is_an_error_with_the_numbers(disk: Path, aligned: Bytes, verb: str, got: int) -> None:
    short = {"preadv": lambda *_: got, "pwritev": lambda d, parts, at: got if len(parts[0]) == 8192 else 4096}
    segment = a_segment(disk, **short)
    with pytest.raises(StoreError) as error:
        do(getattr(segment, verb)(aligned(8192)))
    for part in (f"{verb} of segment l0", str(disk), "offset 0", "wanted 8192 B", f"got {got} B"):
        assert part in str(error.value)
    assert segment.generation == segment.bytes_read == segment.bytes_written == 0


def test_a_transfer_cut_at_a_page_goes_on_from_there(disk: Path, aligned: Bytes) -> None:
    real = Syscalls()
    segment = a_segment(
        disk,
        preadv=lambda d, parts, at: real.preadv(d, [parts[0][:4096]], at),
        pwritev=lambda d, parts, at: real.pwritev(d, [parts[0][:4096]], at),
    )
    source, into = filled(aligned(8192)), aligned(8192)
    do(segment.write(source))
    do(segment.read(into))
    np.testing.assert_array_equal(into, source)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_of_the_disk_names_place_and_numbers(disk: Path, aligned: Bytes, code: int) -> None:
    def fail(descriptor: int, parts: Any, at: int) -> int:
        if at == CHUNK:
            raise OSError(code, "said the disk")
        return len(parts[0])

    segment = a_segment(disk, 2 * CHUNK, preadv=fail)
    with pytest.raises(StoreError, match=f"offset {CHUNK}: wanted {CHUNK} B, got 0 B .said the disk") as error:
        do(segment.read(aligned(2 * CHUNK)))
    assert error.value.errno == code
