"""How fast torch computes here, with as many threads as it takes by itself."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator

import torch

from zcompiler.cli.calibrate.samples import Effort, Sample, quickest, seconds, typical
from zcompiler.free_memory import free_memory
from zcompiler.machine.work import Matmul
from zcompiler.training.models import schedule

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# A dtype that the processor has no instructions for is slow: of it, only the sides up to the first this slow.
SLOW = 0.5
# Of small matrices there are not more sets than this: making them takes longer than multiplying.
SETS = 4096


def compute_samples(effort: Effort) -> list[Sample]:
    """Matmuls and attention (FLOP/s), memory-bound ops (bytes read and written a second), AdamW (bytes of float32
    parameters a second) and what a call of a kernel and of a region costs (seconds)."""
    operands = _operands(effort)
    samples = [s for dtype in DTYPES for s in (*_matmuls(dtype, operands, effort), *_attention(dtype, effort))]
    x = torch.ones(effort.tensor // 4)
    y = torch.empty_like(x)
    rows = x.view(-1, 256)
    sums = torch.empty(rows.shape[0])
    few = torch.ones(8)
    samples += [
        _rate("memory.elementwise", 2 * x.nbytes, lambda: torch.add(x, 1.0, out=y), effort),
        _rate("memory.reduction", x.nbytes + sums.nbytes, lambda: torch.sum(rows, 1, out=sums), effort),
        _rate("memory.copy", 2 * x.nbytes, lambda: y.copy_(x), effort),
        Sample("memory.fresh", lambda: _fresh(x.nbytes, effort)),
        Sample("calls.kernel", lambda: quickest(lambda: few + 1.0, effort)),
    ]
    return [*samples, *_adamw(effort), _region(effort)]


def _rate(key: str, amount: int, call: Callable[[], object], effort: Effort) -> Sample:
    call()
    return Sample(key, lambda: amount / quickest(call, effort))


def _fresh(nbytes: int, effort: Effort) -> float:
    """Bytes a second: what filling a new mapping takes longer than filling it again."""
    old = torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8).fill_(1)
    new = quickest(lambda: torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8).fill_(1), effort)
    # What another program took from the two differs; no system clears pages at this rate.
    return nbytes / max(new - quickest(lambda: old.fill_(1), effort), nbytes / 100e9)


def _matmuls(dtype: str, operands: torch.Tensor, effort: Effort) -> Iterable[Sample]:
    """Each call takes other matrices, as far as the memory of `operands` goes: those of a layer are in no cache either,
    as the other layers come between, and that costs a tenth."""
    for side in effort.sides:
        flops, matrices = Matmul(dtype, side, side, side).flops, operands.view(DTYPES[dtype])
        count = min(SETS, matrices.numel() // (3 * side * side))
        sets = matrices[: 3 * side * side * count].view(count, 3, side, side).unbind()
        turns = itertools.cycle([a_set.unbind() for a_set in sets])

        def call(turns: Iterator[tuple[torch.Tensor, ...]] = turns) -> torch.Tensor:
            a, b, result = next(turns)
            return torch.mm(a, b, out=result)

        call()
        yield Sample(f"matmul.{dtype}.{side}", lambda call=call, flops=flops: flops / typical(call, effort))  # type: ignore[misc]
        if quickest(call, effort) > SLOW:
            return


def _operands(effort: Effort) -> torch.Tensor:
    """Memory for the matmuls of all sides and dtypes, all of it touched: at least one set of the largest."""
    largest = 3 * max(effort.sides) ** 2 * max(dtype.itemsize for dtype in DTYPES.values())
    return torch.ones(max(min(effort.operands, free_memory() // 8), largest) // 4)


def _attention(dtype: str, effort: Effort) -> Iterable[Sample]:
    """Forward and backward together, as their rates are alike. Nothing where that is slow: then it is priced as matmuls
    are."""
    heads, rows, wide = effort.heads
    q, k, v = (torch.ones(1, heads, rows, wide, dtype=DTYPES[dtype], requires_grad=True) for _ in range(3))
    gradient = torch.ones_like(q)

    def call() -> object:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(out, (q, k, v), gradient)

    if seconds(call) > SLOW:
        return
    flops = 7 * Matmul(dtype, rows, rows, wide, heads).flops  # two products forward, five backward
    yield Sample(f"attention.{dtype}", lambda: flops / typical(call, effort))


def _adamw(effort: Effort) -> Iterable[Sample]:
    """Of so many parameters that they come from memory: one, with gradient and states, would stay in a cache."""
    size = effort.tensor // 8
    room = free_memory() // 8  # beside as much for each of gradients and two states
    parameters = [torch.nn.Parameter(torch.ones(size // 4)) for _ in range(max(1, min(effort.updated, room) // size))]
    for p in parameters:
        p.grad = torch.ones_like(p)

    def taken(fused: bool) -> float:
        optimizer = torch.optim.AdamW(parameters, fused=fused)
        optimizer.step()  # makes the states
        return size * len(parameters) / quickest(optimizer.step, effort)

    return [Sample("update.fused", lambda: taken(True)), Sample("update.unfused", lambda: taken(False))]


def _region(effort: Effort) -> Sample:
    """What zinf adds to a layer that computes next to nothing, all of it at rest in memory."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(effort.layers)))
    # A shipped machine: the calibrated one may be what is to be replaced.
    settings = {"memory": "64MiB", "compute": "eager", "machine": "laptop"}
    compiled = torch.compile(model, backend="zinf", options={**settings})
    x = torch.ones(1, 8)
    with torch.no_grad():
        compiled(x)
    regions = len(schedule(model)["graph0"].regions)

    def take() -> float:
        with torch.no_grad():
            surplus = quickest(lambda: compiled(x), effort) - quickest(lambda: model(x), effort)
        # What another program took from the two differs, and a region that costs nothing there is not.
        return max(surplus / regions, 1e-6)

    return Sample("calls.region", take)
