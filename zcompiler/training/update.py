"""One streamed optimizer step: which parameters, in which sub-groups, in which order; run now, or late."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from runtime_ext.recording import phase
from zcompiler.analyse.sizes import short_name
from zcompiler.passes.pipeline import parse_pipeline, run_pipeline
from zcompiler.plan.plan import describe
from zcompiler.plan.update import OPTIMIZER_WORK, SubGroup, subgroup_bytes, update_schedule
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.words import UPDATE_LANE
from zcompiler.training.interrupts import uninterrupted
from zcompiler.training.late import LateUpdate
from zcompiler.training.low import asked_for, begin_update, doubt
from zcompiler.training.members import Member, Part, pieces_of, stored_gradient
from zcompiler.training.ordering import DEPTH, late_bytes
from zcompiler.training.outside import seen_from_outside
from zcompiler.training.registry import record_of
from zcompiler.training.resting import Unit
from zcompiler.training.session import Session
from zcompiler.training.slices import UpdateCall, Updated
from zcompiler.training.states import MASTER, StepForm, adopt_states, bare_copy, step_form, working_dtype


class Update:
    """The update of an optimizer's managed parameters; what is not among `members` is for the optimizer's own step."""

    def __init__(
        self, session: Session, optimizer: torch.optim.Optimizer, members: Sequence[tuple[dict[str, Any], torch.Tensor]]
    ) -> None:
        self.session, self._bare = session, bare_copy(optimizer)
        self._forms: dict[tuple[int, torch.dtype], StepForm] = {}
        self._groups: dict[int, dict[str, Any]] = {}
        self.members = [m for group, p in members if (m := self._member(optimizer, group, p)) is not None]
        self.parameters = [m.p for m in self.members]
        self.units: dict[Unit, list[Member]] = {}
        for member in self.members:
            self.units.setdefault(member.record.unit, []).append(member)
        for m in self.members:
            if m.layout:
                m.states = optimizer.state[m.p]
                adopt_states(session, m.record.unit, m.p, m.record.slot, m.layout, m.states)
        self.late = bool(self.members) and self._may_be_late(optimizer)

    def run(self) -> None:
        """Do it now."""
        if not self.members:
            return
        try:
            with self._phase():
                call, schedule = self._call(self._subgroup_bytes(), 1)
                try:
                    call.executor.run(schedule.regions, call)
                finally:
                    call.close()
        except BaseException:
            doubt(self.members)
            raise
        self._mark_changed()
        self.session.between_phases()

    def start(self, optimizer: torch.optim.Optimizer) -> None:
        """Let it go on with the next forward, in the order in which that needs the units."""
        late = LateUpdate(self.session.steps, self.members, self.session.freed, self.session.between_phases)
        with self._phase(), uninterrupted():  # or the step would be lost, and its copies in 16 bits would count as made
            call, schedule = self._call(self._size, DEPTH, late.updated)
            self._mark_changed()
            self.session.late_steps += 1
            late.start(call, schedule, optimizer)

    def _phase(self) -> AbstractContextManager[None]:
        return phase(self.session.runtime.recorder, UPDATE_LANE, UPDATE_LANE)

    def _may_be_late(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether nobody could tell, and the limit leaves room for it beside a forward."""
        if not self.session.options.late or seen_from_outside(optimizer, self.members):
            return False
        if not self.session.executor.usable():
            return False  # which the user is to be told in this step
        order, room = self.session.uses.ahead(self.members)
        self._size = late_bytes(room, self._subgroup_bytes(), self._moved(), OPTIMIZER_WORK)
        self.units = dict(sorted(self.units.items(), key=lambda item: min(order[m.record] for m in item[1])))
        return self._size > 0

    def _call(self, size: int, depth: int, updated: Updated | None = None) -> tuple[UpdateCall, Schedule]:
        parts: dict[str, list[Part]] = {}
        for unit, members in self.units.items():
            pieces = pieces_of(members, size)
            for i, piece in enumerate(pieces):
                parts[unit.name if len(pieces) == 1 else f"{unit.name}[{i}]"] = piece
        begin_update(self.members)
        groups = [self._subgroup(name, piece) for name, piece in parts.items()]
        ahead = depth * max(g.nbytes for g in groups)
        schedule = self.session.update_schedule((ahead, *groups), lambda: self._schedule(groups, ahead))
        return UpdateCall(self.session.executor, self._bare, parts, schedule, ahead, updated), schedule

    def _mark_changed(self) -> None:
        # Autograd must refuse a backward whose forward saw the old values, as it would in memory.
        for p in self.parameters:
            torch.autograd.graph.increment_version(p)

    def _member(self, optimizer: torch.optim.Optimizer, group: dict[str, Any], p: torch.Tensor) -> Member | None:
        """None for what the optimizer's own step handles: nothing in the store, or a gradient of another form."""
        record, grad = record_of(p), p.grad
        store = self.session.store_tier
        if record is None or grad is None or not record.fits(p) or not record.at_home(p):
            return None
        homes = record.unit.homes
        dtype = working_dtype(self.session, p.dtype)
        if (store not in (homes.params, homes.optimizer) and dtype == p.dtype) or grad.layout is not torch.strided:
            return None
        if grad.dtype != p.dtype or grad.device != p.device:
            return None
        key = (id(group), p.dtype)
        if key not in self._forms:
            self._forms[key] = step_form(optimizer, group, dtype)
        if id(group) not in self._groups:
            # A scheduler changes the settings right after the step that they were meant for.
            own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items() if k != "params"}
            self._groups[id(group)] = own
        form, state = self._forms[key], optimizer.state.get(p, {})
        layout, edits_grad, master = form.states, form.edits_gradients, "no"
        if dtype != p.dtype:
            layout, edits_grad, master = {**layout, MASTER: dtype}, False, "there" if MASTER in state else "new"
        rounded = [k for k in layout if isinstance(v := state.get(k), torch.Tensor) and v.dtype != layout[k]]
        if rounded and master != "no":
            self.session.note(
                f"the states {', '.join(rounded)} of a parameter were rounded to {p.dtype} by load_state_dict before "
                "the optimizer's first step; call it after that step to keep their precision"
            )
        scalars = {k: v for k, v in state.items() if k not in layout}
        stored = stored_gradient(record.unit, p, grad)
        return Member(
            p,
            self._groups[id(group)],
            record,
            layout,
            grad,
            stored,
            state,
            not state,
            scalars,
            edits_grad,
            master,  # type: ignore[arg-type]
            asked_for(record),
        )

    def _subgroup_bytes(self) -> int:
        store, held = self.session.store_tier, 0.0
        for unit, members in self.units.items():
            for m in members:
                resting = float((unit.homes.params != store) + (m.stored_grad is None))
                resting += _states_per_byte(m) * (unit.homes.optimizer != store)
                held += m.p.numel() * m.p.element_size() * resting
        where = describe({unit.name: unit.homes for unit in self.units})
        return subgroup_bytes(self.session.options.memory, int(held), where, self._moved(), OPTIMIZER_WORK)

    def _moved(self) -> float:
        """Bytes that move for each byte of parameters, at most."""
        store, most = self.session.store_tier, 0.0
        for unit, members in self.units.items():
            for m in members:
                moved = (unit.homes.params == store) + (m.stored_grad is not None)
                copies = sum(dtype.itemsize for dtype in m.low) / m.p.element_size()
                most = max(most, moved + copies + _states_per_byte(m) * (unit.homes.optimizer == store))
        return most

    def _subgroup(self, name: str, piece: list[Part]) -> SubGroup:
        store, compute = self.session.store_tier, self.session.compute_tier
        stored = any(part.member.stored_grad is not None for part in piece)
        homes = replace(piece[0].member.record.unit.homes, grads=store if stored else compute)
        param = sum(part.padded(part.member.p.element_size()) for part in piece)
        grad = sum(
            part.padded(part.member.p.element_size())
            for part in piece
            if not stored or part.member.stored_grad is not None
        )
        state = sum(part.padded(d.itemsize) for part in piece for d in part.member.layout.values())
        edits = any(part.member.edits_grad for part in piece)
        low: dict[str, int] = {}
        for part in piece:
            for dtype in part.member.low:
                low[short_name(dtype)] = low.get(short_name(dtype), 0) + part.padded(dtype.itemsize)
        return SubGroup(name, homes, param, grad, state, edits, tuple(low.items()))

    def _schedule(self, groups: Sequence[SubGroup], ahead: int) -> Schedule:
        bare = update_schedule(groups, self.session.tiers, OPTIMIZER_WORK)
        return run_pipeline(bare, parse_pipeline(f"prefetch-reads{{bytes={format_bytes(ahead)}}}"))


def _states_per_byte(m: Member) -> float:
    """Bytes of states for each byte of a parameter."""
    return sum(dtype.itemsize for dtype in m.layout.values()) / m.p.element_size()
