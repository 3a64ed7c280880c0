"""Tiles that nobody asked for: where nothing fits without, and only there."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import zcompiler
from tests.right.twins import stock, train, with_zinf
from tests.training.losses import Projected, batch, plain
from tests.training.tiled import Run, adamw, assert_equal_but_for_rounding, blocks, data
from zcompiler.errors import DoesNotFit
from zcompiler.torch_compat.compiling import cause_in_backend

CLASSES = 4096
TOKENS = 512  # 8 MiB of logits
BATCHES = [batch(TOKENS, 1, CLASSES, seed) for seed in range(2)]
WIDE = 256  # layers of 2 MiB, in two weights


def classifier() -> Projected:
    return Projected(plain, CLASSES)


def run(folder: Path, module: torch.nn.Module, batches: list[Any], **options: Any) -> Run:
    theirs = train(stock(copy.deepcopy(module)), [adamw], batches)
    model = with_zinf(copy.deepcopy(module), folder, place={}, **options)
    return Run(model, train(model, [adamw], batches), theirs)


def refusal(folder: Path, module: torch.nn.Module, batches: list[Any], **options: Any) -> DoesNotFit:
    with pytest.raises(BackendCompilerFailed) as caught:
        with_zinf(module, folder, place={}, **options)(**batches[0])
    cause = cause_in_backend(caught.value)
    assert isinstance(cause, DoesNotFit)
    return cause


def tiles(model: Any, file: Path) -> Any:
    """Those of the model's first graph."""
    zcompiler.schedule(model).save_plan(file)
    return json.loads(file.read_text())["graphs"]["graph0"]["tile"]


def test_logits_that_do_not_fit_are_made_in_tiles(disk: Path) -> None:
    assert refusal(disk, classifier(), BATCHES, memory="5MiB", tile={}).least > 5 << 20
    found = run(disk, classifier(), BATCHES, memory="5MiB", dump=str(disk))
    assert_equal_but_for_rounding(found)
    said = (disk / "graph0" / "plan.txt").read_text()
    assert "head.weight: its loss in" in said and "\nin tiles of up to " in said
    assert found.stats.fallbacks == ()


def test_weights_that_do_not_fit_are_computed_with_in_tiles(disk: Path) -> None:
    module, batches = blocks(layers=2, width=WIDE), data(2, WIDE)
    least = refusal(disk, module, batches, memory="2MiB", tile={}).least
    assert least > 3 << 20
    found = run(disk, module, batches, memory=least // 2)
    assert_equal_but_for_rounding(found)
    assert any(name.startswith("fwd/layers.0.up/") for name in found.regions())
    assert found.stats.read["nvme"]["param"] > 0 and found.stats.fallbacks == ()


def test_where_all_fits_nothing_is_in_tiles(disk: Path) -> None:
    found = run(disk, classifier(), BATCHES, memory="40MiB")
    assert tiles(found.model, disk / "plan.json") == []


@pytest.mark.parametrize("memory", ["300KiB", pytest.param("600KiB", marks=pytest.mark.full)])
def test_the_number_of_a_refusal_would_work(memory: str, disk: Path) -> None:
    module, batches = blocks(layers=2, width=WIDE), data(1, WIDE)
    least = refusal(disk, module, batches, memory=memory).least
    assert refusal(disk, module, batches, memory=least - 1).least == least
    assert_equal_but_for_rounding(run(disk, module, batches, memory=least))


def test_a_description_chooses_the_same_tiles_as_a_run(disk: Path) -> None:
    options = {"memory": "5MiB", "compute": "eager"}
    described = zcompiler.schedule(classifier(), BATCHES[0], loss=lambda out: out, options=options)
    model = with_zinf(classifier(), disk, place={}, **options)
    train(model, [adamw], BATCHES)
    assert described.graphs[0].plan.tile
    ours, theirs = disk / "described.json", disk / "run.json"
    described.save_plan(ours)
    zcompiler.schedule(model).save_plan(theirs)
    assert ours.read_text() == theirs.read_text()


def test_a_given_plan_has_its_tiles(disk: Path) -> None:
    saved = disk / "plan.json"
    first = with_zinf(classifier(), disk, place={}, memory="5MiB")
    ours = train(first, [adamw], BATCHES)
    zcompiler.schedule(first).save_plan(saved)
    second = torch.compile(
        classifier(), backend="zinf",
        options={"memory": "5MiB", "plan": str(saved), "nvme": str(disk), "compute": "eager"},
    )  # fmt: skip
    again = train(second, [adamw], BATCHES)
    assert again.losses == ours.losses
    assert tiles(second, disk / "second.json") == tiles(first, disk / "first.json") != []


def test_an_evaluation_before_and_after_keeps_its_own_graph(disk: Path) -> None:
    """Each graph chooses for itself; the parameters are the same ones."""
    theirs, ours = stock(classifier()), with_zinf(classifier(), disk, place={}, memory="5MiB")
    results = []
    for model in (ours, theirs):
        with torch.no_grad():
            before = model(**BATCHES[0]).item()
        train(model, [adamw], BATCHES)
        with torch.no_grad():
            results.append((before, model(**BATCHES[0]).item()))
    assert results[0] == pytest.approx(results[1], rel=1e-6)
