"""One call of a compiled graph: its live arguments, what the schedule brought, and how a region gets its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from runtime_ext.call import Call, settle
from runtime_ext.executor import Executor
from runtime_ext.interface import Buffer, Event, Segment
from zcompiler.analyse.buckets import Bucket
from zcompiler.capture.pieces import Joined, Piece
from zcompiler.layout import ALIGNMENT
from zcompiler.lower.holdings import Holdings, address
from zcompiler.lower.parts import Whole, cut_from, used
from zcompiler.lower.ranges import Range, Ranges
from zcompiler.lower.regions import Boxed
from zcompiler.lower.saved import SavedLayout, lay_out
from zcompiler.plan.step import PhaseNames
from zcompiler.progress import progress
from zcompiler.schedule.model import Op, Schedule

if TYPE_CHECKING:
    from zcompiler.lower.graph import CompiledGraph


class Residence(Protocol):
    """Where parameters and gradients of live arguments rest; the training part knows."""

    def admit(self, parameters: Sequence[torch.Tensor]) -> bool:
        """A call with these parameters begins; says whether some are new. DoesNotFit when the limit has no room for
        those."""
        ...

    def locate(self, bucket: Bucket, parameters: Sequence[torch.Tensor]) -> Ranges | None:
        """Where these parameters, or their cast copies, rest in the store, taken over and made first if they are new;
        None: in ordinary memory."""
        ...

    def gradients(self, bucket: Bucket, value: str, parameters: dict[int, torch.Tensor]) -> GradientHome:
        """Room in the store for the gradients of these parameters, given by slot."""
        ...

    def room(self, nbytes: int, call: object) -> Segment:
        """Room in the store for what a call saves for its backward; the call's until it dies."""
        ...

    def begins(self, schedule: Schedule, phase: str, trains: bool) -> None:
        """A phase ("fwd" or "bwd") of a call begins, its parameters are located; `trains`: a backward may follow."""
        ...

    def arriving(self, bucket: str, buffer: Buffer) -> Event | None:
        """When these parameters will be in the buffer without a read from the store; None: never."""
        ...

    def settled(self, bucket: str) -> None:
        """Return when no update of these parameters, which no line of the schedule reads, is under way."""
        ...


@dataclass(frozen=True, slots=True)
class GradientHome:
    """Where a bucket's gradients go: `ranges` in the store, the same bytes as `tensors` by slot, and the places of
    the slots in a buffer of `ranges.nbytes`."""

    ranges: Ranges
    tensors: dict[int, torch.Tensor]
    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class LoweredRegion:
    """A region ready to run. All names are the graph's local ones: `last` are the values that no later region wants,
    `results` the outputs, and what is put together of outputs, that go to the caller; `pieces` are the inputs that are
    pieces of values, `parts` the outputs that are parts, and of what."""

    run: Boxed
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    last: frozenset[str]
    results: frozenset[str]
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, Joined]] = field(default_factory=dict)


class GraphCall(Call):
    """From a forward to the end of its backward. `env` holds, under value names, what the schedule brought to buffers;
    `tensors` holds activations, under the local names of the phase; `saved` those of which the store has the bytes,
    as long as the call lives, since a retained graph may run its backward again; `wholes` what is being put together of
    parts, by local name."""

    def __init__(self, graph: CompiledGraph, executor: Executor, schedule: Schedule) -> None:
        super().__init__(executor, schedule, lag=graph.lag)
        self.graph = graph
        self.live: dict[int, torch.Tensor] = {}  # Dynamo position -> the caller's parameter
        self.located: dict[str, Ranges | None] = {}
        self.gradients: dict[str, GradientHome] = {}
        self.tensors: dict[str, Any] = {}
        self.saved: dict[str, tuple[Ranges, SavedLayout]] = {}
        self.results: dict[str, Any] = {}  # what goes to the caller, by local name
        self.wholes: dict[str, Whole] = {}
        self.stored_wholes: dict[str, GradientHome] = {}
        self.names = PhaseNames()
        self.holdings = Holdings()

    def begin(self, names: PhaseNames, live: dict[int, torch.Tensor], phase: str) -> None:
        """Start a phase: `live` are the parameters by Dynamo position. New ones are taken over here."""
        self.names, self.live, self.wholes = names, live, {}
        self.lag = 0 if phase == "fwd" else self.graph.lag
        buckets = self.graph.buckets
        new = self.graph.residence.admit([live[p] for bucket in buckets for p in bucket.positions])
        with progress("moving parameters", sum(b.nbytes for b in buckets) if new else 0) as advance:
            for bucket in buckets:
                self.located[bucket.name] = self.graph.residence.locate(bucket, [live[p] for p in bucket.positions])
                advance(bucket.nbytes)
        self.graph.residence.begins(self.schedule, phase, self.graph.trains)

    def end(self) -> None:
        """End a phase: activations belong to autograd from here on; buffers stay."""
        self.tensors = {}
        self.holdings.clear()
        self.results = {}
        self.gradients = {}
        self.stored_wholes = {}

    def abandon(self) -> BaseException | None:
        """As for any call; but what is done stays known, for a retained graph may run its backward again. So do writes
        of saved activations that went wrong: there is nothing to be read."""
        before = dict(self.events)
        error = super().abandon()
        writes = {f"write({value})" for value in self.saved}
        self.events.update(
            (name, made) for name, made in before.items() if name.partition("@")[0] in writes or settle(made[1]) is None
        )
        return error

    def put(self, local: str, thing: object) -> None:
        self.tensors[local] = thing
        if not self._is_in_arena(thing):
            self.holdings.add(thing)

    def take(self, local: str) -> object:
        thing = self.tensors.pop(local)
        self.holdings.drop(thing)
        return thing

    def release(self, value: str) -> None:
        """Nothing to do: a region lets go of each tensor that no later one wants."""

    def outside(self) -> int:
        return self.holdings.nbytes

    def segment(self, value: str) -> Segment:
        if value in self.gradients:
            return self.gradients[value].ranges  # type: ignore[return-value]
        if value in self.saved:
            return self.saved[value][0]  # type: ignore[return-value]
        found = self.located.get(value)
        if found is None:
            raise LookupError(f"{value} does not rest in the store")
        return found  # type: ignore[return-value]

    def arriving(self, value: str, buffer: Buffer) -> Event | None:
        return self.graph.residence.arriving(value, buffer) if value in self.graph.bucket else None

    def compute(self, region: str, op: Op) -> None:
        self.graph.before(op.work + sum(self.schedule.value(name).nbytes for name in op.writes))
        self._run(region)
        if region in self.graph.offloaded:
            self._offload(self.graph.offloaded[region])

    def _run(self, region: str) -> None:
        lowered = self.graph.regions[region]
        arguments: list[Any] = []
        borrowed: dict[str, Buffer] = {}
        for local in lowered.inputs:
            name = used(local, lowered.pieces)
            if name in self.names.slots:
                held: Any = self._parameter(*self.names.slots[name], borrowed)
            else:
                held = self.tensors[name] if name in self.tensors else self._brought_back(name)
            arguments.append(cut_from(held, lowered.pieces[local]) if local in lowered.pieces else held)
            del held
        for local in lowered.last & self.tensors.keys():
            self.take(local)
        made = lowered.run(arguments)
        grads: dict[str, dict[int, torch.Tensor]] = {}
        for local, result in zip(lowered.outputs, made, strict=True):
            result = self._own(local, result, local in lowered.results)
            if local in lowered.parts:
                local, result = self._add_part(lowered, local, result)
                if result is None:
                    continue
            if local in self.names.grads:
                value, slot = self.names.grads[local]
                grads.setdefault(value, {})[slot] = result
            else:
                self.put(local, result)
            if local in lowered.results:
                self.results[local] = result
                self.holdings.add(result)
        for buffer in borrowed.values():
            buffer.free()
        parts = sum(m.nbytes for local, m in zip(lowered.outputs, made, strict=True) if local in lowered.parts)
        self.graph.measured(self._held() + parts, self.holdings.freed())
        for value, tensors in grads.items():
            if value in self.graph.stored_gradients:
                self._store(value, tensors)

    def _add_part(self, lowered: LoweredRegion, local: str, part: torch.Tensor) -> tuple[str, torch.Tensor | None]:
        """Put a part in its place in the whole, before the next is made; the whole's name, and itself if it is one."""
        name, joined = lowered.parts[local]
        if local in self.names.grads and (value := self.names.grads[local][0]) in self.graph.stored_gradients:
            self._store_part(value, name, part)
            return name, None
        whole = self.wholes.get(name)
        if whole is None:
            whole = self.wholes[name] = Whole(joined)
        self.holdings.drop(whole.tensor)
        if not whole.add(local, part):
            self.holdings.add(whole.tensor)
            return name, None
        del self.wholes[name]
        return name, whole.tensor

    def _store_part(self, value: str, name: str, part: torch.Tensor) -> None:
        """Hand a tile's gradient to the store, to its place in the one of the parameter."""
        bucket = self.graph.bucket[self.graph.stored_gradients[value]]
        assert bucket.tile is not None
        if name not in self.stored_wholes:
            live = {0: self.live[bucket.positions[0]]}
            home = self.graph.residence.gradients(bucket, f"{bucket.rests_as}:grad", live)
            self.stored_wholes[name] = home
            self.results[name] = home.tensors[0]
        padded = -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        ranges = self.stored_wholes[name].ranges.part(value, bucket.tile.first * part.element_size(), padded)
        self.gradients[value] = GradientHome(ranges, {}, {})
        buffer = self.alloc(value, padded, form=self.graph.gradient_form)
        target = torch.frombuffer(buffer.array, dtype=torch.uint8, count=part.nbytes)
        target.view(part.dtype).view(part.shape).copy_(part)

    def _offload(self, values: Sequence[str]) -> None:
        """Copy activations to buffers that the schedule writes, and hand out stand-ins, so that autograd keeps none."""
        saved = {value: {n: self.results[n] for n in self.graph.step.saved[value]} for value in values}
        layouts = {value: lay_out(tensors) for value, tensors in saved.items()}
        room = self.graph.residence.room(sum(layout.nbytes for layout in layouts.values()), self)
        at = 0
        for value, layout in layouts.items():
            tensors = saved.pop(value)
            self.saved[value] = Ranges(value, [Range(room, at, layout.nbytes)]), layout
            at += layout.nbytes
            layout.fill(self.alloc(value, layout.nbytes).array, tensors)
            self.graph.measured(self._held(), 0)
            for local, tensor in tensors.items():
                if local in self.tensors:
                    self.take(local)
                self.holdings.drop(tensor)
                self.results[local] = torch.empty(0, dtype=tensor.dtype)
            del tensors, tensor

    def _brought_back(self, local: str) -> torch.Tensor:
        """A saved activation, in the buffer that the schedule read it to."""
        value = self.names.values[local]
        return self.saved[value][1].views[local].over(self.env[value].array)  # type: ignore[attr-defined]

    def _held(self) -> int:
        return self.holdings.nbytes + self.executor.runtime.arena(self.compute_tier).in_use

    def _own(self, local: str, result: Any, handed_out: bool) -> Any:
        """A result that looks into a buffer, as a copy of its own; but one that only later regions use may look into
        that of its own value, which the schedule releases behind them."""
        if not self._is_in_arena(result):
            return result
        seen = next((value for value in self.saved if self._looks_into(result, value)), None)
        if seen is None:
            self.graph.note("a region's output that was a view of a gathered parameter was copied")
        elif seen == self.names.values.get(local) and not handed_out:
            return result
        return result.clone()

    def _is_in_arena(self, thing: object) -> bool:
        place = address(thing)
        return place is not None and self.executor.runtime.arena(self.compute_tier).owns(place)

    def _looks_into(self, thing: object, value: str) -> bool:
        place, buffer = address(thing), self.env.get(value)
        if place is None or buffer is None:
            return False
        return 0 <= place - buffer.array.ctypes.data < buffer.nbytes  # type: ignore[attr-defined]

    def _parameter(self, bucket_name: str, slot: int, borrowed: dict[str, Buffer]) -> torch.Tensor:
        bucket = self.graph.bucket[bucket_name]
        live = self.live[bucket.positions[slot]]
        if self.located.get(bucket_name) is None:
            self.graph.residence.settled(bucket_name)
            assert bucket.tile is None
            return live
        buffer = self.env.get(bucket_name) or borrowed.get(bucket_name)
        if buffer is None:
            buffer = borrowed[bucket_name] = self._gather_now(bucket_name)
        array = buffer.array  # type: ignore[attr-defined]
        flat = torch.frombuffer(array, dtype=torch.uint8, count=bucket.sizes[slot], offset=bucket.offsets[slot])
        shape = live.shape if bucket.tile is None else (bucket.tile.length, *live.shape[1:])
        return flat.view(bucket.low or live.dtype).as_strided(shape, live.stride())

    def _gather_now(self, bucket_name: str) -> Buffer:
        """A second backward through the same graph finds what the first one released, and a graph planned for another
        home than the parameters have found nothing: gather them now, and wait."""
        self.graph.residence.settled(bucket_name)
        ranges = self.located[bucket_name]
        assert ranges is not None
        buffer = self.executor.alloc(self.compute_tier, ranges.nbytes)
        self.graph.gather_now(ranges, buffer)
        return buffer

    def _store(self, value: str, tensors: dict[int, torch.Tensor]) -> None:
        """Hand gradients to the store: copy them to a buffer that the schedule writes, and return mapped tensors."""
        bucket = self.graph.bucket[self.graph.stored_gradients[value]]
        home = self.graph.residence.gradients(bucket, value, {s: self.live[bucket.positions[s]] for s in tensors})
        self.gradients[value] = home
        buffer = self.alloc(value, home.ranges.nbytes, form=self.graph.gradient_form)
        for slot, tensor in tensors.items():
            mapped = home.tensors[slot]
            size = tensor.numel() * tensor.element_size()
            target = torch.frombuffer(buffer.array, dtype=torch.uint8, count=size, offset=home.offsets[slot])
            target.view(tensor.dtype).as_strided(mapped.shape, mapped.stride()).copy_(tensor)
        for local, (name, slot) in self.names.grads.items():
            if name == value and local in self.results and slot in tensors:
                self.holdings.drop(self.results[local])
                self.results[local] = home.tensors[slot]
