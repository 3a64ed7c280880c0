"""One streamed optimizer step: which parameters, in which sub-groups, in which order; run now, or late."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from runtime_ext.recording import phase
from zcompiler.plan.beside import DEPTH, late_bytes
from zcompiler.plan.update import OPTIMIZER_WORK
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.words import UPDATE_LANE
from zcompiler.stages.update import Units, largest_subgroup, moved_bytes, plan_update
from zcompiler.training.interrupts import uninterrupted
from zcompiler.training.late import LateUpdate
from zcompiler.training.low import asked_for, begin_update, doubt
from zcompiler.training.members import Member, Part, forget_unmade, stored_gradient
from zcompiler.training.outside import seen_from_outside
from zcompiler.training.registry import record_of
from zcompiler.training.resting import Unit
from zcompiler.training.session import Session
from zcompiler.training.slices import UpdateCall, Updated
from zcompiler.training.states import MASTER, StepForm, adopt_states, bare_copy, step_form, working_dtype
from zcompiler.training.told import tell_update


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
        try:
            for m in self.members:
                if m.layout:
                    m.states = optimizer.state[m.p]
                    adopt_states(session, m.record.unit, m.p, m.record.slot, m.layout, m.states)
        except BaseException:
            forget_unmade(self.members)
            raise
        self._optimizer = type(optimizer).__name__
        self._why_not_late = self._why_not_later(optimizer) if self.members else "there is nothing to update"
        self.late = not self._why_not_late

    def run(self) -> None:
        """Do it now. Ctrl-C takes effect between sub-groups: each is updated, with its states, or as it was."""
        if not self.members:
            return
        try:
            with self._phase():
                call, schedule = self._call(self._largest(), 1)
                try:
                    for region in schedule.regions:
                        with uninterrupted():
                            call.executor.run([region], call)
                finally:
                    call.close()
        except BaseException:
            doubt(self.members)
            forget_unmade(self.members)
            raise
        finally:
            self._mark_changed()  # also of an update that fails: some of it is done
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

    def _why_not_later(self, optimizer: torch.optim.Optimizer) -> str:
        """Why it has to end in this step; empty if nobody could tell, and the limit leaves room for it beside a
        forward."""
        if not self.session.options.late:
            return "the option late says so"
        if seen_from_outside(optimizer, self.members):
            return "it is the first, or somebody else refers to what it changes"
        if not self.session.executor.usable():
            return "the store can no longer be used"  # which the user is to be told in this step
        order, room = self.session.uses.ahead(self.members)
        moved = moved_bytes(self._units(), self.session.parts)
        self._size = late_bytes(room, self._largest(), moved, OPTIMIZER_WORK)
        self.units = dict(sorted(self.units.items(), key=lambda item: min(order[m.record] for m in item[1])))
        return "" if self._size > 0 else "the limit leaves no room for it beside a forward"

    def _call(self, size: int, depth: int, updated: Updated | None = None) -> tuple[UpdateCall, Schedule]:
        plan = plan_update(self._units(), size, depth, self.session.parts)
        begin_update(self.members)
        members = {unit.name: members for unit, members in self.units.items()}
        parts = {
            name: [Part(members[unit][s.member], s.start, s.stop) for s in slices]
            for name, (unit, slices) in plan.parts.items()
        }

        def schedule_it() -> Schedule:
            tell_update(self._optimizer, len(self.members), len(plan.groups), self._why_not_late)
            return plan.schedule()

        schedule = self.session.update_schedule((plan.ahead, *plan.groups), schedule_it)
        return UpdateCall(self.session.executor, self._bare, parts, schedule, plan.ahead, updated), schedule

    def _units(self) -> Units:
        return {unit.name: [m.updated() for m in members] for unit, members in self.units.items()}

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
        dtype = working_dtype(self.session.options, p.dtype)
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

    def _largest(self) -> int:
        return largest_subgroup(self._units(), self.session.parts, self.session.options.memory)
