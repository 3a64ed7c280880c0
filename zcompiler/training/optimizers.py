"""Plain `torch.optim` optimizers, intercepted: a step streams what rests in the store and leaves the rest alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zcompiler.options import OPTIMIZER_STATES
from zcompiler.training.registry import record_of
from zcompiler.training.session import Session
from zcompiler.training.update import Update

_STREAMERS: weakref.WeakKeyDictionary[torch.optim.Optimizer, Streamer] = weakref.WeakKeyDictionary()


def states_per_parameter_byte(name: str) -> int:
    """Bytes of state that an optimizer class keeps for each byte of parameters, with its default settings."""
    return len(OPTIMIZER_STATES[name])


@cache
def watch_optimizers() -> None:
    """Look at each optimizer step of the process from now on; those without our parameters are left as they are."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if optimizer in _STREAMERS:
        return
    records = [r for group in optimizer.param_groups for p in group["params"] if (r := record_of(p)) is not None]
    if records:
        _STREAMERS[optimizer] = streamer = Streamer()
        # Hooks of the optimizer itself run after the global ones, and ours is the last of them: what users hung on
        # the optimizer before its first step (clipping, say) has happened by then.
        optimizer.register_step_pre_hook(streamer.before)
        optimizer.register_step_post_hook(streamer.after)


class Streamer:
    """Runs one optimizer's update of managed parameters, then hides their gradients from the optimizer's own step."""

    def __init__(self) -> None:
        self._set_aside: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._restore()  # a step that raised never came to `after`
        changed = _evaluate_closure(args, kwargs)
        sessions: dict[Session, list[tuple[dict[str, Any], torch.Tensor]]] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if (record := record_of(p)) is not None:
                    members = sessions.setdefault(record.unit.session, [])
                    if p.grad is not None:
                        members.append((group, p))
        for session, members in sessions.items():
            session.steps += 1
            if (why := _why_not_streamed(optimizer)) is not None:
                session.note(f"{type(optimizer).__name__}.step() runs as it is, over mapped memory and slowly: {why}")
                continue
            done = Update(session, optimizer, members).run()
            self._set_aside += [(p, p.grad) for p in done]
        for p, _ in self._set_aside:
            p.grad = None
        return changed

    def after(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._restore()

    def _restore(self) -> None:
        for p, grad in self._set_aside:
            p.grad = grad
        self._set_aside = []


def _why_not_streamed(optimizer: torch.optim.Optimizer) -> str | None:
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
