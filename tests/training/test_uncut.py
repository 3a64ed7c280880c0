"""Where everything fits there is nothing to do between regions, and Inductor gets each phase as a whole."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.twins import Trace, assert_same, stock, train, with_zinf
from tests.training.tiled import adamw, blocks, data

BATCHES = data(3)
UNCUT = ["fwd/whole", "bwd/tangents", "bwd/whole"]


def run(folder: Path, memory: str, **options: Any) -> tuple[Trace, Any]:
    model = with_zinf(blocks(), folder, memory=memory, place={}, compute="inductor", **options)
    return train(model, [adamw], BATCHES), model


def regions(model: Any) -> list[str]:
    return [region.name for region in zcompiler.schedule(model)["graph0"].regions]


def test_it_is_what_inductor_makes_of_the_model_to_the_bit(disk: Path) -> None:
    ours, model = run(disk, "64MiB")
    assert regions(model) == UNCUT
    assert_same(ours, train(stock(blocks(), "inductor"), [adamw], BATCHES))
    stats = zcompiler.stats(model)
    assert stats.fallbacks == () and not any(stats.read["nvme"].values()) and not any(stats.written["nvme"].values())


def test_where_something_moves_it_is_cut(disk: Path) -> None:
    _, model = run(disk, "1MiB")
    assert len(regions(model)) > len(UNCUT)
    assert zcompiler.stats(model).read["nvme"]["state"] > 0


def test_an_evaluation_is_uncut_too(disk: Path) -> None:
    model = with_zinf(blocks(), disk, memory="64MiB", place={}, compute="inductor")
    with torch.no_grad():
        ours, theirs = model(**BATCHES[0]), stock(blocks(), "inductor")(**BATCHES[0])
    assert torch.equal(ours, theirs) and regions(model) == ["fwd/whole"]


def test_a_given_plan_keeps_it(disk: Path) -> None:
    ours, model = run(disk, "64MiB")
    saved = disk / "plan.json"
    zcompiler.schedule(model).save_plan(saved)
    torch._dynamo.reset()
    again = torch.compile(
        copy.deepcopy(blocks()), backend="zinf",
        options={"memory": "64MiB", "nvme": str(disk), "plan": str(saved), "compute": "inductor"},
    )  # fmt: skip
    assert_same(train(again, [adamw], BATCHES), ours)
    assert regions(again) == UNCUT


@pytest.mark.parametrize("activations", ["recompute", "nvme"])
def test_what_the_user_says_of_activations_keeps_it_cut(activations: str, disk: Path) -> None:
    _, model = run(disk, "64MiB", activations=activations)
    assert len(regions(model)) > len(UNCUT)
