"""`zcompiler.schedule` for a model that has not run: its plan and schedules, from shapes alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from zcompiler.describe.capture import Capturing
from zcompiler.describe.described import Schedules
from zcompiler.describe.update import described_update
from zcompiler.errors import ZinfError
from zcompiler.lower.regions import usable_compute
from zcompiler.machine.choose import choose_machine
from zcompiler.machine.parts import cpu_only
from zcompiler.options import parse_options
from zcompiler.plan.file import MadeFor, given_plans
from zcompiler.stack import with_room
from zcompiler.torch_compat.compiling import cause_in_backend, compile_apart
from zcompiler.torch_compat.tensors import (
    NO_VALUES,
    copy_without_bytes,
    each_tensor,
    shapes_only,
    tensors_in,
    without_bytes,
)

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def describe(
    model: torch.nn.Module,
    inputs: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: MakeOptimizer | None = None,
    options: Mapping[str, object] | None = None,
    train: bool = True,
    update: bool = True,
) -> Schedules:
    """What `torch.compile(model, backend="zinf", options=options)` would do in a step, without a byte of the model.

    Takes a model with its weights, on the meta device, or made under FakeTensorMode, and leaves it as it is. `inputs`:
    a dict of keyword arguments, a tuple of arguments, or one argument; only forms count. `loss` gives the loss of what
    the model returns (default: its `.loss`, else the sum of its first tensor), `optimizer` makes one of parameters
    (default: the class that the option `optimizer` names, with its defaults). With `train` false, what an evaluation
    without gradients does; with `update` false, the schedule of the optimizer step, which for a very large model takes
    longest, is left out. The options `dump` and `nvme` are checked but not used: nothing is written.

    OptionError, DoesNotFit with the smallest limit that would do, ZinfError for a model that cannot run on forms alone.
    """
    module = getattr(model, "_orig_mod", model)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"wants a model (nn.Module) or its compiled form, not {type(model).__name__}")
    raw = {name: value for name, value in (options or {}).items() if name != "dump"}
    chosen = parse_options(raw, environ=os.environ)
    given = given_plans(chosen)
    machine = choose_machine(chosen.machine, os.environ, chosen.nvme[0])
    notes: list[str] = []
    compute = usable_compute(chosen.compute, notes)
    mode = shapes_only()
    copy, sources = copy_without_bytes(module, mode)
    capturing = Capturing(chosen, compute, cpu_only(chosen.memory), machine, sources, given)
    for note in notes:
        capturing.note(note)
    args, kwargs = arguments_of(each_tensor(lambda t: without_bytes(t, mode), inputs))
    compiled = compile_apart(copy, capturing)
    make = optimizer or getattr(torch.optim, chosen.optimizer)
    updater: torch.optim.Optimizer | None = None
    try:
        with mode, torch.set_grad_enabled(train):
            out = compiled(*args, **kwargs)
            if train:
                loss_of(out, loss).backward()
                updater = make(copy.parameters()) if update else None
    except NO_VALUES as error:
        raise ZinfError(
            f"{type(module).__name__} looks at the values of tensors outside what torch can capture ({error}), and "
            "there are none: describe the part that it calls, or train it and use the option dump"
        ) from error
    except Exception as error:
        cause = cause_in_backend(error)
        if isinstance(cause, ZinfError):
            raise cause from None
        raise
    if not capturing.graphs:
        raise ZinfError(f"torch has captured no graph of {type(module).__name__}: see TORCH_LOGS=graph_breaks")
    step, late, fused = None, False, False
    if updater is not None:
        step, late = with_room(described_update, capturing, chosen, updater)
        fused = any(group.get("fused") for group in updater.param_groups)
    made_for = MadeFor.of(chosen, str(machine), compute)
    return Schedules(tuple(capturing.graphs), step, late, fused, chosen, machine, tuple(capturing.notes), made_for)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as `describe` takes it, as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, tuple | list) else ((inputs,), {})


def loss_of(out: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    """What is trained on, given what the model returns: see `describe`. ZinfError where there is nothing."""
    found: Any
    if loss is not None:
        found = loss(out)
    elif (found := out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)) is None:
        tensors = [t for t in tensors_in(out) if t.is_floating_point()]
        if not tensors:
            raise ZinfError(f"the model returns {type(out).__name__} without a tensor to train on: say how (loss)")
        found = tensors[0].sum()
    if not isinstance(found, torch.Tensor) or not found.requires_grad:
        raise ZinfError("the loss does not hang on any parameter that wants gradients; to evaluate, say train=False")
    return found
