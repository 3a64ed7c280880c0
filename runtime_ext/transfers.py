"""One op of a schedule as work for a lane: where it takes its bytes, where it puts them."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_ext.call import Call, Stored
from runtime_ext.interface import Buffer, Work
from runtime_ext.runtime import Runtime
from zcompiler.schedule.flow import Place, moved_form, rest_place
from zcompiler.schedule.model import Op


@dataclass(frozen=True, slots=True)
class Transfer:
    """`uses` names the buffers the work reads or fills, which it pins until it is done."""

    work: Work
    uses: tuple[Place, ...]
    segment: Stored | None = None


def transfer(op: Op, call: Call, runtime: Runtime) -> Transfer:
    """The work of `op`, its destination allocated. LookupError when its source is not there; MemoryError."""
    makers = {
        "read": _read,
        "write": _write,
        "reload": _move,
        "offload": _move,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
    }
    if op.kind not in makers:
        raise ValueError(f"no runtime carries out {op.kind} of {op.value}: known are {', '.join(makers)}")
    return makers[op.kind](op, call, runtime)


def _read(op: Op, call: Call, runtime: Runtime) -> Transfer:
    segment = call.segment(op.value)
    place = _place(op, call, op.dst)
    buffer = _destination(call, place, segment.nbytes)
    return Transfer(segment.read(buffer.array), (place,), segment)


def _write(op: Op, call: Call, runtime: Runtime) -> Transfer:
    segment = call.segment(op.value)
    place = _place(op, call, op.src)
    return Transfer(segment.write(_source(op, call, place).array), (place,), segment)


def _move(op: Op, call: Call, runtime: Runtime) -> Transfer:
    source = _source(op, call, _place(op, call, op.src))
    into = _destination(call, _place(op, call, op.dst), source.nbytes)
    uses = (_place(op, call, op.src), _place(op, call, op.dst))
    return Transfer(runtime.copy(f"{op.kind}({op.value})", source.array, into.array), uses)


def _all_gather(op: Op, call: Call, runtime: Runtime) -> Transfer:
    shard, full = (Place(op.value, form, call.compute_tier) for form in ("shard", "full"))
    source = _source(op, call, shard)
    into = _destination(call, full, call.size(op.value, "full"))
    return Transfer(runtime.peers.all_gather(source.array, into.array), (shard, full))


def _reduce_scatter(op: Op, call: Call, runtime: Runtime) -> Transfer:
    shard, full = (Place(op.value, form, call.compute_tier) for form in ("shard", "full"))
    source = _source(op, call, full)
    into = _destination(call, shard, call.size(op.value, "shard"))
    return Transfer(runtime.peers.reduce_scatter(source.array, into.array), (shard, full))


def _place(op: Op, call: Call, tier: str) -> Place:
    return Place(op.value, moved_form(call.schedule, call.schedule.value(op.value)), tier)


def _source(op: Op, call: Call, place: Place) -> Buffer:
    buffer = call.held(place)
    if buffer is None and place == rest_place(call.schedule, call.schedule.value(op.value)):
        buffer = call.resting(op.value)
    if buffer is None:
        raise LookupError(f"{op.kind}({op.value}): {place} is not there: nothing brought it")
    return buffer


def _destination(call: Call, place: Place, nbytes: int) -> Buffer:
    buffer = call.held(place)
    if buffer is None and place == rest_place(call.schedule, call.schedule.value(place.value)):
        buffer = call.resting(place.value)
    if buffer is None:
        buffer = call.executor.alloc(place.tier, nbytes)
        call.hold(place, buffer)
    if buffer.nbytes != nbytes:
        raise ValueError(f"{place} has {buffer.nbytes} B, and {nbytes} B are to be moved there")
    return buffer
