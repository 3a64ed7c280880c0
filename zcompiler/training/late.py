"""An update whose optimizer step has returned: it goes on as the next forward comes to need what it updates.

Its reads and writes go on in their lanes meanwhile; its compute is done by whoever needs the result, on that thread.
A thread of its own would gain nothing, as compute uses all cores anyway, and could not be exact: while another thread
compiles, `torch.compiler.is_compiling()` is true everywhere, and optimizers then compute in another way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from runtime_ext.interface import Event
from runtime_ext.recording import phase
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.words import UPDATE_LANE
from zcompiler.torch_compat.tensors import NoSubclasses
from zcompiler.training.interrupts import uninterrupted
from zcompiler.training.low import doubt
from zcompiler.training.members import Member, Part, forget_unmade, low_values
from zcompiler.training.registry import forget_update, remember_update
from zcompiler.training.resting import Record
from zcompiler.training.tensors import flat_over

if TYPE_CHECKING:
    from zcompiler.training.session import Session
    from zcompiler.training.slices import UpdateCall


class Place(NamedTuple):
    """At which byte of a buffer elements `start` to `stop` of a parameter belong."""

    at: int
    start: int
    stop: int


Places = dict[Record, Place]
Read = Callable[[Sequence[Event]], Event]


class _Done:
    """The event of something that is already there."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


class LateUpdate:
    """One optimizer step's update, from its `start` until `complete`. Any thread may ask for a part of it."""

    def __init__(
        self, step: int, members: Sequence[Member], freed: Callable[[int], None], computed: Callable[[], None]
    ) -> None:
        """`freed` is told of gradients that are no longer needed, in bytes; `computed` when all is updated."""
        self.step, self._freed, self._computed = step, freed, computed
        self._members = {m.record: m for m in members}
        self._left: dict[Record, list[Part]] = {}  # what is still to be updated, by parameter
        self._landing: dict[Record, list[tuple[Part, Event]]] = {record: [] for record in self._members}
        self._sink: tuple[Places, np.ndarray, torch.dtype | None] | None = None
        self._lock = threading.RLock()
        self._error: BaseException | None = None

    def start(self, call: UpdateCall, schedule: Schedule, optimizer: torch.optim.Optimizer) -> None:
        """From now on looks from outside wait for it; if the optimizer dies, it is done first."""
        self._call: UpdateCall | None = call
        first, *others = schedule.regions
        reads = next(i for i, op in enumerate(first.ops) if op.kind == "run")
        self._regions = iter([replace(first, ops=first.ops[reads:]), *others])
        for piece in call.parts.values():
            for part in piece:
                self._left.setdefault(part.member.record, []).append(part)
        call.executor.run([replace(first, ops=first.ops[:reads])], call)  # the disk need not wait for the forward
        remember_update(self)
        self._at_death = weakref.finalize(optimizer, self.complete)
        self._at_death.atexit = False

    def gradients(self, session: Session) -> list[torch.Tensor]:
        """The session's gradients in memory that the update is still to read."""
        own = (m for m in list(self._members.values()) if m.record.unit.session is session and m.stored_grad is None)
        return [grad for m in own if (grad := m.grad) is not None]

    def needs(self, grad: torch.Tensor) -> bool:
        """Whether the update is still to read this gradient."""
        return any(m.grad is grad for m in self._members.values())

    def bring(
        self,
        places: Places,
        buffer: np.ndarray | None = None,
        read: Read | None = None,
        low: torch.dtype | None = None,
    ) -> Event | None:
        """Go on until these parameters are updated. Gives back the event of their arrival in `buffer`: of new values
        put there at once (cast, if `low` says so), or of `read`, which reads them from the store behind the writes that
        it is given.

        None if the store has them all, or without a buffer.
        """
        with self._lock:
            direct = buffer is not None and all(self._has_all(record, place) for record, place in places.items())
            if direct:
                assert buffer is not None
                self._sink = places, buffer, low
            try:
                while any(self._left_in(record, place) for record, place in places.items()):
                    self._go_on()
            finally:
                self._sink = None
            if direct:
                return _Done()
            landing = self._landings(places)
            return read(landing) if landing and read is not None else None

    def compute(self) -> None:
        """Do all that is left, but for the last writes, which may be on their way."""
        with self._lock:
            while any(self._left.values()):
                self._go_on()

    def complete(self) -> None:
        """Do all that is left. Errors are for `raise_error`; Ctrl-C is none: whoever asks next goes on."""
        with self._lock:
            try:
                self.compute()
                with uninterrupted():
                    self._close()
            except Exception as error:
                self._fail(error)
            finally:
                if self._call is None:
                    self._at_death.detach()
                    if self._error is None:
                        forget_update(self)

    def raise_error(self) -> None:
        """Raise, once, what went wrong."""
        error, self._error = self._error, None
        if error is not None:
            forget_update(self)
            raise error

    def updated(self, part: Part, values: torch.Tensor) -> None:
        """Told by the update of new values, before their buffer goes."""
        if self._sink is None or (place := self._sink[0].get(part.member.record)) is None:
            return
        _, buffer, low = self._sink
        start, stop, dtype = max(part.start, place.start), min(part.stop, place.stop), low or values.dtype
        if start < stop:
            at = place.at + (start - place.start) * dtype.itemsize
            target = flat_over(buffer[at : at + (stop - start) * dtype.itemsize], dtype)
            target.copy_(values[start - part.start : stop - part.start])

    def _go_on(self) -> None:
        """Update the next sub-group. Ctrl-C waits: the user has interrupted a forward or a look, and the step that went
        before it must not be lost half way."""
        with uninterrupted():
            self._update_next()

    def _update_next(self) -> None:
        call = self._call
        assert call is not None
        region = next(self._regions)
        try:
            with NoSubclasses():
                call.executor.run([region], call)
        except BaseException as error:
            self._fail(error)
            self.raise_error()
        name = region.name.removeprefix("update/")
        values = (name, *low_values(name, call.parts[name]))
        written = [e[1] for value in values if (e := call.events.get(f"write({value})@{region.name}")) is not None]
        # Activations are made while gradients go: the holes they leave would stay on top of them.
        done = (p.member for p in call.parts[name] if p.is_last and p.member.stored_grad is None)
        self._freed(sum(m.p.numel() * m.p.element_size() for m in done))
        for part in call.parts[name]:
            self._left[part.member.record].remove(part)
            self._landing[part.member.record] += [(part, event) for event in written]
        if not any(self._left.values()):
            self._computed()

    def _close(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            with phase(call.executor.runtime.recorder, UPDATE_LANE, UPDATE_LANE):
                call.close()

    def _left_in(self, record: Record, place: Place) -> list[Part]:
        return [p for p in self._left.get(record, ()) if p.start < place.stop and place.start < p.stop]

    def _has_all(self, record: Record, place: Place) -> bool:
        """Whether nothing of it has been updated yet."""
        left = self._left_in(record, place)
        return sum(min(p.stop, place.stop) - max(p.start, place.start) for p in left) == place.stop - place.start

    def _landings(self, places: Places) -> list[Event]:
        """The writes of it that are on their way."""
        return [
            event
            for record, place in places.items()
            for part, event in self._landing.get(record, ())
            if part.start < place.stop and place.start < part.stop and not event.done()
        ]

    def _fail(self, error: BaseException) -> None:
        error.add_note(f"in the update of optimizer step {self.step}, which went on after step() had returned")
        self._error = error
        doubt(self._members.values())
        forget_unmade(self._members.values())
        self._left.clear()
        self._members.clear()
        self._call = None
