"""What a bare schedule holds besides the values of its runs."""

from __future__ import annotations

from tests.plan.steps import KIB, layers
from zcompiler.plan.plan import Homes


def test_gradients_on_their_way_to_the_store_take_room_in_the_next_region_too() -> None:
    """Also if that has a gradient which stays in memory: a tied embedding, which comes last."""
    step = layers([4 * KIB, 4 * KIB, 2 * KIB, 3 * KIB], 1 << 20)
    stored, kept = Homes("host", "nvme", "host"), Homes("host", "host", "host")
    placed = step.placed({"l0": kept, "l1": kept, "l2": stored, "l3": stored}).schedule
    work = {region.name: sum(op.work for op in region.ops) for region in placed.regions}
    assert work == {
        "fwd/l0": 0,
        "fwd/l1": 0,
        "fwd/l2": 0,
        "fwd/l3": 0,
        "bwd/l3": (3 + 3) * KIB,
        "bwd/l2": (2 + 3) * KIB,
        "bwd/l1": 3 * KIB,
        "bwd/l0": 0,
    }
