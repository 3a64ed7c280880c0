"""A compiled graph: the boxed forward and backward that AOTAutograd calls."""

from __future__ import annotations

import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from runtime_ext.executor import Executor
from runtime_ext.interface import Buffer
from runtime_ext.recording import phase
from zcompiler.analyse.buckets import Bucket
from zcompiler.capture.captured import TOKEN, Captured
from zcompiler.capture.cut import Cut
from zcompiler.logs import stage
from zcompiler.lower.call import GraphCall, LoweredRegion, Residence
from zcompiler.lower.holdings import address
from zcompiler.lower.parts import parts_in, pieces_in, used
from zcompiler.lower.ranges import Ranges
from zcompiler.lower.regions import RegionCompiler
from zcompiler.plan.step import PhaseNames, Step
from zcompiler.progress import progress
from zcompiler.schedule.flow import moved_form
from zcompiler.schedule.model import Region, Schedule
from zcompiler.schedule.simulate.steps import stored_bytes
from zcompiler.stack import with_room
from zcompiler.torch_compat.tensors import NoSubclasses

_COMPILE = logging.getLogger("zinf.compile")


class CompiledGraph:
    """What one Dynamo graph became. Calls are independent: two forwards may be in flight before a backward."""

    def __init__(
        self,
        captured: Captured,
        buckets: Sequence[Bucket],
        step: Step,
        schedule: Schedule,
        *,
        executor: Executor,
        residence: Residence,
        compiler: RegionCompiler,
        compute: str,
        note: Callable[[str], None],
        before: Callable[[int], None],
        measured: Callable[[int, int], None],
        returned: Callable[[Iterable[torch.Tensor]], None],
        between_phases: Callable[[bool, bool], None],
        backward_ended: Callable[[], None],
    ) -> None:
        self.captured, self.buckets, self.step, self.schedule = captured, tuple(buckets), step, schedule
        self.executor, self.residence, self.compiler, self.compute = executor, residence, compiler, compute
        self.note, self.before, self.measured = note, before, measured
        self.returned, self.between_phases = returned, between_phases
        self.backward_ended = backward_ended
        self.bucket = {b.name: b for b in buckets}
        self.trains = captured.backward is not None
        self.regions: dict[str, LoweredRegion] = {}
        self.stored_gradients, self.gradient_form = _stored_gradients(schedule, step.backward)
        # One bucket of gradients may be on its way to the store while the next is made.
        self.lag = stored_bytes(schedule)
        self.offloaded = _offloaded(schedule)
        self._calls: dict[int, GraphCall] = {}
        self._numbers = itertools.count()

    def lower_forward(self) -> Callable[[list[Any]], Any]:
        cut, inference = self.captured.forward, self.captured.backward is None
        with_room(self._lower, cut, self.step.forward, is_backward=False, is_inference=inference)
        regions = self._regions(self.step.forward)
        positions = [self.captured.positions.get(name) for name in cut.inputs]
        cut = cut.without_graphs()
        self.captured = replace(self.captured, forward=cut)

        def forward(args: list[Any]) -> Any:
            call = GraphCall(self, self.executor, self.schedule)
            try:
                with NoSubclasses(), phase(self.executor.runtime.recorder, self.schedule.name, "fwd"):
                    self._bind(call, cut, self.step.forward, args, positions)
                    token = None if inference else self._token(call)
                    return with_room(self._run, call, regions, cut, token, last=inference)
            except BaseException:
                call.abandon()
                raise

        return _boxed(forward)

    def lower_backward(self) -> Callable[[list[Any]], Any]:
        backward, names = self.captured.backward, self.step.backward
        assert backward is not None and names is not None
        with_room(self._lower, backward, names, is_backward=True, is_inference=False)
        regions = self._regions(names)
        token_at = backward.inputs.index(TOKEN)
        cut = backward.without_graphs()
        self.captured = replace(self.captured, backward=cut)

        def run(args: list[Any]) -> Any:
            token = args[token_at]  # held to the end: the call goes with it
            call = self._calls[int(token)]
            try:
                call.names = names
                with NoSubclasses(), phase(self.executor.runtime.recorder, self.schedule.name, "bwd"):
                    self._bind(call, cut, names, args, None)
                    results = with_room(self._run, call, regions, cut, None, last=True)
                self.backward_ended()
                return results
            except BaseException:
                call.abandon()
                raise

        return _boxed(run)

    def _lower(self, cut: Cut, names: PhaseNames, *, is_backward: bool, is_inference: bool) -> None:
        results = {r for r in cut.results if isinstance(r, str)}
        seen = results & set(cut.inputs)
        lowered: dict[str, LoweredRegion] = {}
        phase = "backward" if is_backward else "forward"
        known, began = self.compiler.compiled, time.perf_counter()
        with progress(f"compiling {phase} of {self.schedule.name}", len(cut.regions)) as advance:
            for title, region in reversed(list(zip(names.regions, cut.regions, strict=True))):
                with stage(f"{self.schedule.name}: compile {title}"):
                    run = self.compiler.compile(
                        region.module, self.compute, is_backward=is_backward, is_inference=is_inference
                    )
                pieces, parts = pieces_in(cut, region), parts_in(cut, region)
                inputs = [used(n, pieces) for n in region.inputs]
                last = frozenset(n for n in inputs if n in names.values and n not in seen)
                seen.update(inputs)
                handed_out = frozenset(
                    n for n in (*region.outputs, *(whole for whole, _ in parts.values())) if n in results
                )
                lowered[title] = LoweredRegion(run, region.inputs, region.outputs, last, handed_out, pieces, parts)
                advance(1)
        self.regions.update(reversed(lowered.items()))
        _COMPILE.info(
            "%s: %s has %d regions; compute=%s made %d new ones in %.1f s",
            self.schedule.name,
            phase,
            len(cut.regions),
            self.compute,
            self.compiler.compiled - known,
            time.perf_counter() - began,
        )
        # Autograd has handed these over already: nothing runs.
        self.regions.update({title: LoweredRegion(list, (), (), frozenset(), frozenset()) for title in names.given})

    def gather_now(self, ranges: Ranges, buffer: Buffer) -> None:
        """Fill `buffer` and wait: what no line of the schedule says, so it is noted."""
        self.note(
            "a parameter was gathered outside the schedule: backward ran more than once through a graph, or the graph "
            "found the parameter at another home than that for which it was planned"
        )
        self.executor.runtime.submit("nvme_read", ranges.read(buffer.array)).wait()

    def _regions(self, names: PhaseNames) -> list[Region]:
        own = {*names.regions, *names.given}
        return [r for r in self.schedule.regions if r.name in own]

    def _bind(
        self, call: GraphCall, cut: Cut, names: PhaseNames, args: list[Any], positions: list[int | None] | None
    ) -> None:
        live = dict(call.live)
        for i, (local, value) in enumerate(zip(cut.inputs, args, strict=True)):
            if self.captured.parameter(local) is not None:
                if positions is not None:
                    live[positions[i]] = value  # type: ignore[index]
            elif local in names.values and names.values[local] not in call.saved:
                call.tensors[local] = value
                if self.schedule.value(names.values[local]).kind != "input":
                    call.holdings.add(value)
        args.clear()
        call.begin(names, live, "fwd" if positions is not None else "bwd")

    def _run(
        self, call: GraphCall, regions: Iterable[Region], cut: Cut, token: torch.Tensor | None, last: bool
    ) -> tuple[Any, ...]:
        own = set(cut.inputs)
        through = {n: self._passed_through(call, n) for n in cut.results if isinstance(n, str) and n in own}
        call.executor.run(regions, call)
        results = tuple(
            token if name == TOKEN else through.get(name, call.results.get(name)) if isinstance(name, str) else name
            for name in cut.results
        )
        if last != self.trains:  # a forward
            self.returned(self._outputs(call, cut, results))
        call.end()
        if last:
            call.close()
        self.between_phases(last, self.trains)
        return results

    def _outputs(self, call: GraphCall, cut: Cut, results: Sequence[Any]) -> Iterator[torch.Tensor]:
        """Of the results of a forward, those that the plan counts as held by the caller."""
        for name, result in zip(cut.results, results, strict=True):
            value = call.names.values.get(name) if isinstance(name, str) else None
            if value is not None and self.schedule.value(value).kind == "output" and address(result) is not None:
                yield result

    def _passed_through(self, call: GraphCall, name: str) -> Any:
        """An input that is a result as it stands: the caller's own tensor."""
        position = self.captured.positions.get(name)
        if position is not None and position in call.live:
            return call.live[position]
        return call.tensors[name]

    def _token(self, call: GraphCall) -> torch.Tensor:
        """The saved tensor that leads backward to its call; when autograd lets it go, so does the call.

        Autograd saves another tensor object over the same storage, so it is the storage whose end counts: it keeps
        the array that it was made from.
        """
        number = next(self._numbers)
        memory = np.array([number])
        self._calls[number] = call
        weakref.finalize(memory, _forget, self._calls, number)
        return torch.frombuffer(memory, dtype=torch.int64)


def _forget(calls: dict[int, GraphCall], number: int) -> None:
    call = calls.pop(number, None)
    if call is not None:
        call.abandon()


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd then hands over its only references
    return run


def _offloaded(schedule: Schedule) -> dict[str, list[str]]:
    """Region -> the activations that the schedule writes to a store behind it."""
    found: dict[str, list[str]] = {}
    for region, op in schedule.ops():
        if op.kind == "write" and schedule.value(op.value).kind == "act":
            found.setdefault(region.name, []).append(op.value)
    return found


def _stored_gradients(schedule: Schedule, names: PhaseNames | None) -> tuple[dict[str, str], str]:
    """The gradient values that the schedule writes to a store -> their bucket, and the form it writes."""
    written = {op.value for _, op in schedule.ops() if op.kind == "write"}
    found = {value: bucket for value, bucket in names.buckets.items() if value in written} if names is not None else {}
    return found, next((moved_form(schedule, schedule.value(value)) for value in found), "full")
