from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from tests.training.pair import DATA, pair


def in_a_child(act: Callable[[], object]) -> str:
    """What a forked child says: the result of `act`, or what it raised."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(act())
        except Exception as error:
            said = repr(error)
        os.write(sender, said.encode())
        os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver) as pipe:
        return pipe.read()


def test_a_forked_child_reads_weights_and_changes_its_own_only(disk: Path) -> None:
    own = pair(disk)
    weight = own.ours.module.layers[0].weight
    assert in_a_child(lambda: weight.sum().item()) == repr(own.theirs.module.layers[0].weight.sum().item())

    @torch.no_grad()
    def zero() -> float:
        return weight.zero_().sum().item()

    assert in_a_child(zero) == "0.0"
    own.goes_on()


def test_a_forked_child_is_told_that_it_cannot_run_the_model(disk: Path) -> None:
    own = pair(disk)
    own.each(lambda side: side.forward(DATA[0]).backward())
    for act in (lambda: own.ours.forward(DATA[0]), lambda: own.ours.optimizer.step()):
        said = in_a_child(act)
        assert said.startswith("RuntimeError(")
        assert "use the model in the process that compiled it" in said
    own.each(lambda side: side.optimizer.zero_grad())
    own.goes_on()
