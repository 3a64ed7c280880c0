"""For which sizes a plan holds, where these may change from call to call.

A plan is made for the sizes of the call that was captured. Its schedule is kept for others, so what it holds at its
peak is counted for larger ones, too, and Dynamo is told to use the graph for none beyond those that fit: for a larger
one it compiles anew, and the planner finds a plan for that, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from zcompiler.analyse.sizes import Sizes
from zcompiler.capture.captured import Captured
from zcompiler.logs import stage
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import Holds
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Region, Schedule
from zcompiler.stages.planned import Planned
from zcompiler.torch_compat.sizes import Symbol, guard_at_most, symbols_of

# Beyond that a size does not matter to the peak.
_ANY = 1 << 40


def sizes_now(captured: Captured, before: Iterable[Holds]) -> str:
    """The sizes that may change, for an error, with how far plans `before` hold for them; empty if there are none."""
    held = {one.what: one for one in before}
    texts = []
    for symbol in _symbols(captured).values():
        up_to = f", beyond the {held[symbol.what].most} up to which a plan holds" if symbol.what in held else ""
        texts.append(f"{symbol.what} of {symbol.now}{up_to}")
    return " and ".join(texts)


def with_range(planned: Planned, memory: int) -> Planned:
    """The same with the sizes for which it holds below the limit, which Dynamo is told."""
    plan, symbols = planned.plan, _symbols(planned.captured)
    if not symbols:
        return planned
    with stage(f"{planned.name}: sizes for which the plan holds"):
        finished = run_pipeline(planned.step.schedule, parse_pipeline(plan.pipeline), trial=True)
        holds = range_of(symbols, finished, planned.at, memory - planned.taken)
    for one in holds:
        if one.most is not None:
            guard_at_most(symbols[one.symbol], one.most)
    reasons = [line for line in (f"holds for {one}" for one in holds) if line not in plan.reasons]
    return replace(planned, plan=replace(plan, holds=holds, reasons=(*plan.reasons, *reasons)))


def range_of(
    symbols: Mapping[str, Symbol], finished: Schedule, bare_at: Callable[[Sizes], Schedule], limit: int
) -> tuple[Holds, ...]:
    """How far all symbols may grow together, in proportion, until the finished schedule holds more than `limit`.

    `bare_at` gives the placed schedule before any pass for other sizes. Sizes are taken to grow with their symbols.
    """
    largest = max(symbol.now for symbol in symbols.values())

    def grown(to: int) -> dict[str, int]:
        return {name: max(symbol.now, symbol.now * to // largest) for name, symbol in symbols.items()}

    def fits(to: int) -> bool:
        resized = _resized(finished, bare_at(Sizes(grown(to))))
        return peak(resized)[resized.compute_tier.name][0] <= limit

    low, high = largest, 2 * largest
    while high < _ANY and fits(high):
        low, high = high, 2 * high
    unlimited = high >= _ANY
    while not unlimited and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    most = grown(low)
    return tuple(Holds(name, s.what, s.now, None if unlimited else most[name]) for name, s in symbols.items())


def _symbols(captured: Captured) -> dict[str, Symbol]:
    return symbols_of(captured.forward.fakes.get(name) for name in captured.forward.inputs)


def _resized(finished: Schedule, bare: Schedule) -> Schedule:
    """The finished schedule with the sizes of another bare one of the same graph: passes move ops and change homes."""
    size = {v.name: v.nbytes for v in bare.values}
    work = {op.value: op.work for _, op in bare.ops() if op.kind == "run"}
    values = tuple(v if v.shard is not None else replace(v, nbytes=size[v.name]) for v in finished.values)
    regions = tuple(
        Region(r.name, tuple(replace(op, work=work[op.value]) if op.kind == "run" else op for op in r.ops))
        for r in finished.regions
    )
    return replace(finished, values=values, regions=regions)
