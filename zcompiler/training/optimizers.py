"""Plain `torch.optim` optimizers, intercepted: a step streams what rests in the store and leaves the rest alone."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zcompiler.options import OPTIMIZER_STATES
from zcompiler.stack import with_room
from zcompiler.torch_compat.compiling import untraced
from zcompiler.torch_compat.running import run_first, run_last
from zcompiler.torch_compat.tensors import NoSubclasses
from zcompiler.training.observed import ObservedStates
from zcompiler.training.registry import complete_updates, optimizer_stepped, record_of, settle
from zcompiler.training.session import Session
from zcompiler.training.states import working_dtype
from zcompiler.training.update import Update

_STREAMERS: weakref.WeakKeyDictionary[torch.optim.Optimizer, Streamer] = weakref.WeakKeyDictionary()


@cache
def watch_optimizers() -> None:
    """Look at each optimizer step of the process from now on; those without our parameters are left as they are."""
    register_optimizer_step_pre_hook(untraced(_before_step))
    os.register_at_fork(before=complete_updates)


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    streamer = _STREAMERS.get(optimizer)
    if streamer is None:
        if all(record_of(p) is None for group in optimizer.param_groups for p in group["params"]):
            return
        streamer = _STREAMERS[optimizer] = Streamer(optimizer)
    streamer.take_place(optimizer)


class Streamer:
    """Runs one optimizer's update of managed parameters, then hides their gradients from the optimizer's own step.

    Users hang hooks on optimizers too: clipping before a step, an average of the weights after it. Those before must
    find their gradients and those after the new weights and the gradients, so ours is next to the step itself.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._set_aside: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._late: list[Update] = []
        self._loading: dict[str, Any] | None = None
        optimizer.register_load_state_dict_pre_hook(self.before_loading)
        optimizer.register_load_state_dict_post_hook(self.after_loading)
        self._before = optimizer.register_step_pre_hook(untraced(self.before))
        self._after = optimizer.register_step_post_hook(untraced(self.after))

    def take_place(self, optimizer: torch.optim.Optimizer) -> None:
        run_last(optimizer, self._before)
        run_first(optimizer, self._after)

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        settle()
        # What a step that raised left here is spent: the user may have cleared these gradients since, or made new ones.
        self._set_aside, self._late = [], []
        why_not = why_not_streamed(optimizer)
        # Only now: an optimizer that runs as it is may call its closure as often as it likes.
        changed = _evaluate_closure(args, kwargs) if why_not is None else None
        with NoSubclasses():
            for session, members in _members(optimizer).items():
                session.steps += 1
                if why_not is not None:
                    name = type(optimizer).__name__
                    session.note(f"{name}.step() runs as it is, over mapped memory, slowly: {why_not}")
                    continue
                update = Update(session, optimizer, members)
                if update.late:
                    self._late.append(update)
                else:
                    with_room(update.run)
                self._set_aside += [(p, p.grad) for p in update.parameters]
            for p, _ in self._set_aside:
                p.grad = None
        return changed

    def after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        late = self._late
        self._restore()
        optimizer_stepped()
        with NoSubclasses():
            for update in late:
                update.start(optimizer)
            # From the second step on: before, there were no states to look at.
            if type(optimizer.state) is not ObservedStates:
                optimizer.state = ObservedStates(dict, optimizer.state)

    def before_loading(self, optimizer: torch.optim.Optimizer, states: dict[str, Any]) -> None:
        settle()
        self._loading = states

    def after_loading(self, optimizer: torch.optim.Optimizer) -> None:
        """Torch rounds loaded states to the parameter's dtype; those of a master copy keep theirs."""
        states, self._loading = self._loading, None
        assert states is not None
        numbers = (i for group in states["param_groups"] for i in group["params"])
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        for number, p in zip(numbers, parameters, strict=True):
            record = record_of(p)
            if record is None or working_dtype(record.unit.session.options, p.dtype) == p.dtype:
                continue
            for key, value in states["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == p.shape:
                    optimizer.state[p][key] = value.clone()

    def _restore(self) -> None:
        with NoSubclasses():
            for p, grad in self._set_aside:
                p.grad = grad
        self._set_aside, self._late = [], []


def _members(optimizer: torch.optim.Optimizer) -> dict[Session, list[tuple[dict[str, Any], torch.Tensor]]]:
    """The optimizer's managed parameters that have a gradient, with their group, by session."""
    sessions: dict[Session, list[tuple[dict[str, Any], torch.Tensor]]] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if (record := record_of(p)) is not None:
                members = sessions.setdefault(record.unit.session, [])
                if p.grad is not None:
                    members.append((group, p))
    return sessions


def why_not_streamed(optimizer: torch.optim.Optimizer) -> str | None:
    """Why an optimizer's step runs as it is, or None where ours takes its place."""
    known = {getattr(torch.optim, name) for name in OPTIMIZER_STATES}
    if type(optimizer) not in known:
        return "only the elementwise optimizers of torch.optim can be updated in slices"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "a differentiable step needs all of its tensors at once"
    return None


def _evaluate_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Call the user's closure now, because it makes the gradients that we stream; the step gets its value."""
    closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    return args[:1], {**kwargs, "closure": lambda: loss}


def restore_states(parameters: Iterable[torch.Tensor]) -> None:
    """Bring the states that optimizers keep for these parameters back to ordinary memory."""
    for optimizer in list(_STREAMERS):
        for p in parameters:
            state = optimizer.state.get(p)
            if state:
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        state[key] = value.clone(memory_format=torch.preserve_format)
