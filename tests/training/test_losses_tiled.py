"""The projection to classes and its cross-entropy in tiles: the numbers are stock's, and no value holds all logits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_on_nvme, assert_same, moved, stock, with_zinf
from tests.training.losses import CLASSES, FORMS, HIDDEN, REFUSED, Projected, batch, plain
from tests.training.tiled import Run, assert_equal_but_for_rounding, tiled

HEAD = {"head": 4}


def trained(
    folder: Path, module: torch.nn.Module, batches: list[Any] | None = None, tile: dict[str, int] = HEAD, **options: Any
) -> Run:
    run = tiled(folder, module, batches or [batch()], tile, **options)
    for own, their in zip(run.ours.losses, run.theirs.losses, strict=True):
        assert abs(own - their) <= 1e-6 * abs(their)
    assert_equal_but_for_rounding(run)
    return run


def logits_in(model: Any, classes: int = CLASSES) -> list[str]:
    """The values of the schedule, other than states, that have all classes."""
    values = zcompiler.schedule(model)["graph0"].values
    return [v.name for v in values if v.kind in ("act", "output", "input") and v.shape and classes in v.shape[1:]]


def tiles_of(run: Run) -> int:
    names = run.regions()
    count = len([name for name in names if name.startswith("fwd/head/")])
    assert count == len([name for name in names if name.startswith("bwd/head/")])
    return count


@pytest.mark.parametrize("form", FORMS)
def test_any_way_to_say_it_gives_stocks_losses_and_gradients(form: str, disk: Path) -> None:
    batches = [batch(seed=seed) for seed in range(2)]
    run = trained(disk, Projected(FORMS[form], bias="matmul" not in form), batches)
    assert tiles_of(run) == 4
    assert logits_in(run.model) == []
    assert run.stats.fallbacks == ()
    assert_on_nvme(run.model, "param", "grad", "state")


MIXED = {"params": "host", "grads": "nvme", "optimizer": "host"}


@pytest.mark.parametrize("place", [ON_HOST, MIXED], ids=["all", "but gradients"])
def test_a_weight_that_rests_in_memory_is_used_in_pieces(place: dict[str, str], disk: Path) -> None:
    run = trained(disk, Projected(plain), place=place)
    assert tiles_of(run) == 4
    assert logits_in(run.model) == []
    assert not any("/" in v.name for v in zcompiler.schedule(run.model)["graph0"].values)
    assert (moved(run.model, "grad")[1] > 0) == (place is MIXED)


@pytest.mark.parametrize("reason", REFUSED)
def test_what_tiles_cannot_compute_is_left_whole_and_said(reason: str, disk: Path) -> None:
    with pytest.warns(RuntimeWarning, match=f"tiles: the loss of head.weight has all its logits.*{reason}"):
        run = tiled(disk, Projected(REFUSED[reason]), [batch()], HEAD)
    assert_equal_but_for_rounding(run)
    assert logits_in(run.model)


def test_rows_that_are_all_ignored_give_nan_and_no_gradient_as_in_stock(disk: Path) -> None:
    data = batch() | {"labels": torch.full((2, 24), -100)}
    theirs, ours = stock(Projected(plain)), with_zinf(Projected(plain), disk, tile=HEAD)
    for model in (theirs, ours):
        loss = model(**data)
        loss.backward()
        assert loss.isnan()
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert logits_in(ours) == []


def test_a_label_out_of_range_is_the_error_that_it_is_in_stock(disk: Path) -> None:
    data = batch()
    model = with_zinf(Projected(plain), disk, tile=HEAD)
    model(**data).backward()
    assert logits_in(model) == []
    for label in (CLASSES, -3):
        data["labels"][1, 3] = label
        with pytest.raises(IndexError) as stocks:
            Projected(plain)(**data)
        with pytest.raises(IndexError, match=str(stocks.value)):
            model(**data)
    data["labels"][1, 3] = 0
    assert model(**data).item() == pytest.approx(Projected(plain)(**data).item(), rel=1e-5)


def test_one_token(disk: Path) -> None:
    assert tiles_of(trained(disk, Projected(plain), [batch(tokens=1, rows=1)])) == 4


def test_as_many_tiles_as_there_are_and_one_row_in_the_last(disk: Path) -> None:
    run = trained(disk, Projected(plain, classes=7 * 128 + 1), [batch(classes=897)], {"head": 100})
    assert tiles_of(run) == 8
    sizes = {v.name: v.shape or v.nbytes for v in zcompiler.schedule(run.model)["graph0"].values if v.kind == "param"}
    assert sizes["head.weight/7"] == 4096 and sizes["head.weight/6"] == 128 * HIDDEN * 4


def test_fewer_classes_than_a_tile_has_are_used_whole(disk: Path) -> None:
    module, data = Projected(plain, classes=100), [batch(classes=100)]
    run = tiled(disk, module, data, HEAD)
    assert_same(run.ours, run.theirs)
    assert tiles_of(run) == 0


def test_a_confident_model_has_the_small_loss_that_stock_has(disk: Path) -> None:
    module = Projected(plain, scale=30)
    with torch.no_grad():
        best = module.head(torch.tanh(module.body(batch()["x"]))).argmax(-1)
    run = trained(disk, module, [batch() | {"labels": best}])
    assert run.theirs.losses[0] < 0.1


def test_classes_that_are_switched_off_may_fill_a_tile(disk: Path) -> None:
    module = Projected(plain)
    with torch.no_grad():
        module.head.bias[500:] = float("-inf")
    data = batch(classes=500)
    run = tiled(disk, module, [data], HEAD, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert run.ours.losses[0].isfinite()
    assert_equal_but_for_rounding(run)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = torch.nn.Embedding(CLASSES, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.head(self.embedding(x).tanh()).flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("place", [ALL_ON_NVME, ON_HOST], ids=["nvme", "host"])
def test_a_head_whose_weight_is_the_embedding(place: dict[str, str], disk: Path) -> None:
    data = [{"x": batch(seed=seed + 1)["labels"], "labels": batch(seed=seed)["labels"]} for seed in range(2)]
    run = trained(disk, Tied(), data, {"*": 4}, place=place)
    assert logits_in(run.model) == []


@pytest.mark.parametrize(("around", "place"), [("the model", ALL_ON_NVME), ("the call", ON_HOST)])
def test_autocast(around: str, place: dict[str, str], disk: Path) -> None:
    class Casting(Projected):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            if around == "the call":
                return super().forward(x, labels)
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x, labels)

    with torch.autocast("cpu", torch.bfloat16, enabled=around == "the call"):
        theirs = stock(module := Casting(plain))
        ours = with_zinf(copy.deepcopy(module), disk, tile=HEAD, place=place)
        losses = [model(**batch()) for model in (theirs, ours)]
    for loss in losses:
        loss.backward()
    assert losses[1].dtype == torch.float32
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    for their, own in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert (their.grad - own.grad).norm() <= 2**-7 * their.grad.norm()
    assert logits_in(ours) == []
    names = [v.name for v in zcompiler.schedule(ours)["graph0"].values]
    assert ("head.weight/3:bf16" in names) == (place is ALL_ON_NVME)


def test_inductor_compiles_equal_tiles_once_and_finds_labels_out_of_range(disk: Path) -> None:
    run = trained(disk, Projected(plain, classes=1024), [batch()], compute="inductor")
    assert tiles_of(run) == 4
    assert run.stats.regions_compiled <= len(run.regions()) - 6
    for label in (1024, -3):
        with pytest.raises(RuntimeError, match="index out of bounds"):
            run.model(**(batch() | {"labels": torch.full((2, 24), label)}))


def test_batches_of_many_sizes_share_a_graph(disk: Path) -> None:
    run = trained(disk, Projected(plain), [batch(tokens=tokens) for tokens in (5, 9, 3, 7)])
    assert run.stats.graphs == 1


def test_evaluation_and_a_second_backward(disk: Path) -> None:
    module = Projected(plain)
    ours, theirs = with_zinf(copy.deepcopy(module), disk, tile=HEAD), stock(module)
    for model in (ours, theirs):
        with torch.no_grad():
            before = model(**batch())
        with torch._functorch.config.patch(donated_buffer=False):
            loss = model(**batch())
            loss.backward(retain_graph=True)
            loss.backward()
        assert before == loss
    for their, own in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert (their.grad - own.grad).norm() <= 1e-5 * their.grad.norm()
    graphs = zcompiler.schedule(ours)
    assert all("fwd/head/3" in [r.name for r in graphs[name].regions] for name in ("graph0", "graph1"))


def test_a_frozen_weight_gets_no_gradient_and_passes_its_inputs_on(disk: Path) -> None:
    module = Projected(plain)
    module.head.requires_grad_(False)
    run = trained(disk, module, place=ON_NVME)
    assert tiles_of(run) == 4
    assert run.ours.grads[0]["_orig_mod.head.weight"] is None


@pytest.mark.parametrize("choice", ["nvme", "recompute"])
def test_activations_that_go_to_nvme_or_are_computed_again(choice: str, disk: Path) -> None:
    module = Projected(plain)
    module.body = torch.nn.Sequential(module.body, torch.nn.GELU(), torch.nn.Linear(HIDDEN, HIDDEN))
    run = trained(disk, module, [batch(tokens=64)], activations=choice)
    assert tiles_of(run) == 4
    assert (moved(run.model, "act")[0] > 0) == (choice == "nvme")
