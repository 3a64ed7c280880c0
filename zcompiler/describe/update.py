"""The schedule of an optimizer's steps: what `training/update.py` would make of the parameters that have gradients."""

from __future__ import annotations

from typing import Any

import torch

from zcompiler.analyse.sizes import short_name
from zcompiler.describe.capture import Capturing
from zcompiler.options import Options
from zcompiler.plan.beside import DEPTH, late_bytes
from zcompiler.plan.update import OPTIMIZER_WORK
from zcompiler.schedule.model import Schedule
from zcompiler.stages.update import Updated, largest_subgroup, moved_bytes, plan_update
from zcompiler.training.optimizers import why_not_streamed
from zcompiler.training.states import MASTER, StepForm, step_form, working_dtype


def described_update(
    capturing: Capturing, options: Options, optimizer: torch.optim.Optimizer
) -> tuple[Schedule | None, bool]:
    """The schedule from the second step on, None if all is updated in memory by the optimizer itself, and whether it
    goes on beside the next forward: that of a loop that holds no aliases of what is updated."""
    if (why := why_not_streamed(optimizer)) is not None:
        capturing.note(f"{type(optimizer).__name__}.step() runs as it is, over mapped memory, slowly: {why}")
        return None, False
    resting, machine = capturing.resting, capturing.resting.parts
    forms: dict[tuple[int, torch.dtype], StepForm] = {}
    members: list[tuple[torch.Tensor, Updated]] = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if (found := _updated(capturing, options, optimizer, group, p, forms)) is not None:
                members.append((p, found))
    if not members:
        return None, False
    waiting = {id(p): 0 if u.stored_grad else u.nbytes for p, u in members}
    order, room = resting.beside_forwards(waiting)
    units: dict[str, list[Updated]] = {}
    first: dict[str, int] = {}
    for p, u in members:
        unit = resting.unit_of(p)
        assert unit is not None
        units.setdefault(unit.name, []).append(u)
        first[unit.name] = min(order[id(p)], first.get(unit.name, order[id(p)]))
    size = largest = largest_subgroup(units, machine, options.memory)
    late = options.late and all(resting.observed(p) for p, _ in members)
    if late:
        size = late_bytes(room, largest, moved_bytes(units, machine), OPTIMIZER_WORK)
        late = size > 0
    if late:
        units = dict(sorted(units.items(), key=lambda item: first[item[0]]))
        return plan_update(units, size, DEPTH, machine).schedule(), True
    return plan_update(units, largest, 1, machine).schedule(), False


def _updated(
    capturing: Capturing,
    options: Options,
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    p: torch.Tensor,
    forms: dict[tuple[int, torch.dtype], StepForm],
) -> Updated | None:
    """None for what the optimizer's own step updates: nothing in the store, or a gradient of another form."""
    resting, store = capturing.resting, capturing.resting.parts.store
    unit, grad = resting.unit_of(p), p.grad
    if unit is None or grad is None or grad.layout is not torch.strided or grad.dtype != p.dtype:
        return None
    homes, dtype = unit.homes, working_dtype(options, p.dtype)
    if store not in (homes.params, homes.optimizer) and dtype == p.dtype:
        return None
    key = id(group), dtype
    if key not in forms:
        forms[key] = step_form(optimizer, group, dtype)
    layout, edits = dict(forms[key].states), forms[key].edits_gradients
    if dtype != p.dtype:
        layout[MASTER], edits = dtype, False
    return Updated(
        p.numel(),
        p.element_size(),
        homes,
        stored_grad=homes.grads == store,
        states=tuple(d.itemsize for d in layout.values()),
        low=tuple((short_name(d), d.itemsize) for d in resting.low(p)),
        edits_grad=edits,
    )
