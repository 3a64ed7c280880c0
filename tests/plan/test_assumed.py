"""What a plan counts on for an update that nobody has seen yet."""

from __future__ import annotations

from dataclasses import replace

from tests.plan.steps import KIB, MIB, layers, planned


def test_a_unit_of_which_little_has_gradients_takes_no_more_room_than_all_of_it() -> None:
    """All but 68 bytes of it are frozen; its states are planned as if it were trained whole."""
    step = layers([36 * KIB] * 2, 4 * MIB)
    few = tuple(replace(v, nbytes=68) if v.name == "l0:grad" else v for v in step.schedule.values)
    partly = replace(step, schedule=replace(step.schedule, values=few))
    forced = {"params": "nvme", "grads": "nvme", "optimizer": "nvme"}
    assert planned(partly, 4 * MIB, **forced).least <= planned(step, 4 * MIB, **forced).least
