"""What a bare schedule holds besides the values of its runs."""

from __future__ import annotations

from tests.plan.steps import KIB, layers
from zcompiler.plan.plan import Homes


def test_gradients_on_their_way_to_the_store_take_room_to_the_end_of_backward() -> None:
    """Also while the region runs whose own gradient stays in memory."""
    step = layers([4 * KIB, 2 * KIB, 3 * KIB], 1 << 20)
    stored, kept = Homes("host", "nvme", "host"), Homes("host", "host", "host")
    placed = step.placed({"l0": kept, "l1": stored, "l2": stored}).schedule
    work = {region.name: sum(op.work for op in region.ops) for region in placed.regions}
    assert work == {
        "fwd/l0": 0,
        "fwd/l1": 0,
        "fwd/l2": 0,
        "bwd/l2": (3 + 3) * KIB,
        "bwd/l1": (2 + 3) * KIB,
        "bwd/l0": 3 * KIB,
    }
