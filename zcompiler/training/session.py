"""One session for each set of options: the runtime, the budget and the statistics that its models share."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from runtime_ext.executor import Executor
from runtime_ext.host import HostArena, HostLane
from runtime_ext.host.runtime import Alone
from runtime_ext.interface import Arena, Lane, Segment, Store
from runtime_ext.nvme import NvmeStore
from runtime_ext.runtime import Runtime
from zcompiler.capture.names import numbered
from zcompiler.errors import ZinfError
from zcompiler.lower.regions import RegionCompiler, usable_compute
from zcompiler.machine.choose import choose_machine
from zcompiler.machine.parts import cpu_only
from zcompiler.machine.work import Work
from zcompiler.options import Options, parse_options
from zcompiler.plan.file import MadeFor, format_plans, given_plans
from zcompiler.plan.plan import Plan
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Schedule
from zcompiler.stages.around import states_per_parameter_byte, tiers_of
from zcompiler.stages.dump import Dump
from zcompiler.torch_compat.tensors import held_bytes
from zcompiler.training.activations import ActivationRoom
from zcompiler.training.ordering import Uses
from zcompiler.training.registry import record_of, running_trace
from zcompiler.training.statistics import Baseline, Ledger, Stats, by_kind
from zcompiler.training.told import tell_session
from zcompiler.training.trimming import Trimming

if TYPE_CHECKING:
    from zcompiler.training.resting import Unit


_LEAST_STAGED = 64 << 10


class Session:
    """What models compiled with the same options share. Lives as long as a graph or a parameter needs it."""

    def __init__(self, options: Options) -> None:
        self.given_plans = given_plans(options)
        self.options = options
        self.machine = choose_machine(options.machine, os.environ, options.nvme[0])
        self.fallbacks: list[str] = []
        self.compute = usable_compute(options.compute, self.fallbacks)
        self.made_for = MadeFor.of(options, str(self.machine), self.compute)
        self.compiler = RegionCompiler()
        self._lanes: dict[str, Lane] = {}
        self._stores: dict[str, Store] = {}
        self.parts = cpu_only(options.memory)
        self.compute_tier, self.store_tier = self.parts.compute, self.parts.store
        # More than there is cannot even be reserved; the limit itself stays what the user said.
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        arenas: dict[str, Arena] = {self.compute_tier: HostArena(self.compute_tier, min(options.memory, there))}
        self.runtime = Runtime(self._lanes, arenas, self._stores, Alone())
        self.executor = Executor(self.runtime)
        self.tiers = tiers_of(self.parts)
        self.schedules: dict[str, Schedule] = {}
        self.plans: dict[str, Plan] = {}
        self.works: dict[str, Mapping[str, Work]] = {}  # by schedule, the work of each run
        self._unit_names: Counter[str] = Counter()
        self.units: weakref.WeakSet[Unit] = weakref.WeakSet()
        self._update_key: Hashable = None
        self.frames: set[int] = set()  # those of which it has a graph for observed parameters
        self.tiled: set[str] = set()  # the globs of option `tile` that fitted some parameter
        self.graphs = 0
        self.trains = False  # whether any graph has a backward
        self.steps = 0
        self.peak = 0
        self._trimming = Trimming(options.memory)
        self._returned = held_bytes(())  # of what the last forward gave the caller
        self.late_steps = 0
        self.uses = Uses()
        self.ledger = Ledger()
        # Weak: whoever dies with the session must not keep it.
        self.activations = ActivationRoom(weakref.WeakMethod(self.create_segment), self.ledger, self.units)
        self._baseline = Baseline()
        weakref.finalize(self, self.runtime.close)
        tell_session(self)
        if (trace := running_trace()) is not None:
            trace.joined(self)
        if not options.nvme_is_ours:
            self.store()  # a path that the user named is checked even if nothing has to move

    def store(self) -> Store:
        """The store, made with its lanes when first needed. OSError when a path cannot hold one."""
        if self.store_tier not in self._stores:
            self._stores[self.store_tier] = store = NvmeStore(self.options.nvme_folders())
            self.fallbacks += store.fallbacks
            for name, threads in self.parts.threads.items():
                self._lanes[name] = HostLane(name, threads)
        return self._stores[self.store_tier]

    def resting_in_memory(self, without: Sequence[torch.Tensor]) -> int:
        """Bytes of the limit that parameters other than these hold at rest, their gradients and states included."""
        own = {record.unit for p in without if (record := record_of(p)) is not None}
        states = states_per_parameter_byte(self.options)

        def resting() -> int:
            return sum(unit.resting_in(self.compute_tier, states) for unit in self.units if unit not in own)

        if resting():
            gc.collect()  # what nobody holds any more takes nothing, though Python has not found it yet
        return resting()

    @property
    def next_graph(self) -> str:
        """The name of the graph that is planned next."""
        return f"graph{self.graphs}"

    def plans_text(self) -> str:
        """The plans of all graphs so far, as a file that can be given back."""
        return format_plans(self.plans, self.made_for)

    def unit_name(self, wanted: str) -> str:
        """`wanted`, or with a number behind it: two models may have a layer of the same name."""
        return numbered(wanted, self._unit_names)

    def update_schedule(self, key: Hashable, make: Callable[[], Schedule]) -> Schedule:
        """The schedule of an update, made anew only when something about it changed."""
        if self._update_key != key:
            self._update_key = None
            self.schedules["update"] = make()
            Dump(self.options.dump, "update").schedule("final", self.schedules["update"])
            self._update_key = key
        return self.schedules["update"]

    def create_segment(self, name: str, kind: str, sizes: Sequence[int]) -> Segment:
        segment = self.store().create(name, kind, sizes)
        self.ledger.open(segment)
        return segment

    def staged(self, most: int) -> int:
        """How many bytes to move at once in a buffer outside any plan: `most`, or less under a small limit."""
        return min(most, max(_LEAST_STAGED, self.options.memory // 8 // _LEAST_STAGED * _LEAST_STAGED))

    def write_now(self, segment: Segment, slots: Sequence[torch.Tensor]) -> None:
        """Write raw bytes to the slots from the first on, in pieces, and wait. Moves no more memory than a piece."""
        piece = self.staged(16 << 20)
        alignment = self.store().alignment
        buffer = self.executor.alloc(self.compute_tier, min(piece, segment.nbytes) or alignment)
        try:
            staged = torch.frombuffer(buffer.array, dtype=torch.uint8)
            for offset, data in zip(segment.offsets, slots, strict=True):
                for at in range(0, data.numel(), piece):
                    part = data[at : at + piece]
                    staged[: part.numel()].copy_(part)
                    padded = -(-part.numel() // alignment) * alignment
                    self.runtime.submit("nvme_write", segment.write(buffer.array[:padded], offset + at)).wait()
        finally:
            buffer.free()

    def note(self, fallback: str) -> None:
        """A fallback: warned of once, and visible in the statistics ever after."""
        if fallback not in self.fallbacks:
            self.fallbacks.append(fallback)
            warnings.warn(fallback, RuntimeWarning, stacklevel=3)

    def measured(self, held: int, freed: int) -> None:
        """Told after each region: bytes its call holds, and bytes of tensors dropped since the region before.

        Freed activations leave holes below new gradients, and glibc gives holes back only when asked: without this
        the end of a backward held both.
        """
        self.peak = max(self.peak, held)
        self.freed(freed)

    def freed(self, nbytes: int) -> None:
        """Told of memory that was given back to the allocator inside a phase.

        Also what the arena no longer uses goes back where room is short: a late update takes more of it at first than
        forward does later, while activations outside it grow.
        """
        self._trimming.freed(nbytes)
        arena = self.runtime.arena(self.compute_tier)
        if self._trimming.too_idle(arena.idle):
            arena.trim(self._trimming.kept)

    def before(self, nbytes: int) -> None:
        """Told before each region of the bytes that it is going to take: what is free, and would be beside that over
        the limit, goes back."""
        arena = self.runtime.arena(self.compute_tier)
        if arena.idle and self._trimming.crowded(nbytes):
            arena.trim(0)
        self._trimming.before(nbytes)

    def returned(self, tensors: Iterable[torch.Tensor]) -> None:
        """Told after each forward what it gives the caller, which is planned for as if the caller held it."""
        self._returned = held_bytes(tensors)

    def between_phases(self, ended: bool = False, trains: bool = False) -> None:
        """Give back what is free after a phase, if it would count against the limit; `ended`: a call has, a training
        one if it `trains`, so that nothing is held of it but what it has returned.

        Not before a phase: the activations of a forward go where the gradients of the step before have been, and
        faulting pages in again takes longer than the rest of the housekeeping.
        """
        self.executor.reap()
        if not self._trimming.full():
            return
        arena = self.runtime.arena(self.compute_tier)
        arena.trim(self._trimming.kept)
        if ended and (trains or not self.trains):  # no activations are held, or they would count as others'
            states = states_per_parameter_byte(self.options)
            resting = sum(unit.resting_in(self.compute_tier, states) for unit in self.units)
            self._trimming.all_of(resting + arena.in_use + self._trimming.kept + self._returned())
        else:
            self._trimming.trim()

    def stats(self) -> Stats:
        then, lanes = self._baseline, self.executor.statistics()
        since = lanes - then.lanes
        return Stats(
            steps=self.steps - then.steps,
            since=then.since,
            read={self.store_tier: by_kind(self.ledger.read(), then.read)},
            written={self.store_tier: by_kind(self.ledger.written(), then.written)},
            peak={self.compute_tier: self.peak},
            planned_peak=self._planned_peak(),
            others=self._trimming.others,
            hidden={lane: since.hidden(lane) for lane in since.busy},
            exposed={lane: since.exposed.get(lane, 0.0) for lane in since.busy},
            graphs=self.graphs,
            regions_compiled=self.compiler.compiled,
            fallbacks=tuple(self.fallbacks),
            late=self.late_steps - then.late,
            machine=str(self.machine),
            holds={name: tuple(map(str, plan.holds)) for name, plan in self.plans.items() if plan.holds},
        )

    def reset_stats(self) -> None:
        self.peak = 0
        self.runtime.arena(self.compute_tier).reset_peak()
        self._baseline = Baseline(
            steps=self.steps,
            late=self.late_steps,
            read=self.ledger.read(),
            written=self.ledger.written(),
            lanes=self.executor.statistics(),
        )

    def _planned_peak(self) -> dict[str, int]:
        peaks: dict[str, int] = {}
        for schedule in self.schedules.values():
            for tier, (size, _) in peak(schedule).items():
                peaks[tier] = max(peaks.get(tier, 0), size)
        return peaks


_SESSIONS: weakref.WeakValueDictionary[Options, Session] = weakref.WeakValueDictionary()


def sessions() -> list[Session]:
    """Those in use."""
    return list(_SESSIONS.values())


def session_for(raw: Mapping[str, object] | None) -> Session:
    """The session of these options: one for all graphs and models that say the same, so that they share one limit.

    OptionError for options that zinf cannot take.
    """
    options = parse_options(raw, environ=os.environ)
    # What is free changes from call to call; whoever did not name a limit means one and the same.
    key = options if raw and "memory" in raw else replace(options, memory=0)
    session = _SESSIONS.get(key)
    if session is None:
        session = _SESSIONS[key] = Session(options)
    return session


def not_compiled(model: object) -> ZinfError:
    return ZinfError(
        f"zinf holds no parameter of {type(model).__name__}: compile it with "
        'torch.compile(model, backend="zinf") and run it once. If that was done, torch has run it without a backend '
        "(graph breaks, see TORCH_LOGS=graph_breaks) or none of its parameters can be moved (see the warnings)"
    )
