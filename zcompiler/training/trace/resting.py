"""What model states take in memory at a moment."""

from __future__ import annotations

from zcompiler.torch_compat.tensors import NoSubclasses
from zcompiler.training.members import stored_gradient
from zcompiler.training.registry import known_parameters, record_of, running_updates
from zcompiler.training.session import Session, states_per_parameter_byte


def resting(session: Session) -> int:
    """Bytes in the compute tier of a session's parameters, gradients and optimizer states.

    Gradients are those there are now, those that only a late update still holds included. Of states the bytes are
    those that the planned optimizer keeps, once a step was made.
    """
    tier, per_byte = session.compute_tier, states_per_parameter_byte(session.options)
    total = 0
    for unit in list(session.units):
        total += sum(unit.sizes) * (unit.parameters is None)
        if session.steps and unit.trained and unit.homes.optimizer == tier:
            total += sum(unit.sizes) * per_byte
    gradients = {}
    with NoSubclasses():  # a look at p.grad must not complete a late update
        for p in known_parameters():
            record = record_of(p)
            if record is None or record.unit.session is not session or (grad := p.grad) is None:
                continue
            if stored_gradient(record.unit, p, grad) is None:
                gradients[id(grad)] = grad.nbytes
        for update in list(running_updates()):
            gradients.update((id(grad), grad.nbytes) for grad in update.gradients(session))
    return total + sum(gradients.values())
