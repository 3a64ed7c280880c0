"""Matmuls in tiles: the numbers are those of the whole, the bytes are the same, and only a tile is in memory."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.right.twins import ALL_ON_NVME, ON_HOST, ON_NVME, assert_on_nvme, assert_same, moved, stock, with_zinf
from tests.training.forms_tiled import FORMS, Using
from tests.training.pair import Side, pair
from tests.training.tiled import Run, assert_equal_but_for_rounding, blocks, data, tiled
from zcompiler.errors import DoesNotFit
from zcompiler.options import OptionError

LAYERS = {"layers.*": 4}
SHORT = data(1, width=512, tokens=1)[0]


def tiles(run: Run, of: str) -> int:
    """How many regions compute a tile of this matmul, each once."""
    names = [name for name in run.regions() if name.rpartition("/")[0] == of]
    assert names == [f"{of}/{i}" for i in range(len(names))]
    return len(names)


@pytest.mark.parametrize(
    ("factor", "place", "late"),
    [(2, ON_NVME, True), (3, ALL_ON_NVME, True), (5, ON_NVME, False), (16, ALL_ON_NVME, False)],
)
def test_any_factor_trains_as_the_whole_does(factor: int, place: dict[str, str], late: bool, disk: Path) -> None:
    run = tiled(disk, blocks(layers=1, width=128), data(width=128), {"layers": factor}, place=place, late=late)
    assert torch.equal(run.ours.losses[0], run.theirs.losses[0])
    assert_equal_but_for_rounding(run)
    assert_on_nvme(run.model, "param", "state", *(["grad"] if place is ALL_ON_NVME else []))
    assert all(tiles(run, of) == factor for of in ("fwd/layers.0.up", "fwd/layers.0.down", "bwd/layers.0.down"))


def test_gradients_that_are_not_summed_over_tiles_are_equal_bit_for_bit(disk: Path) -> None:
    run = tiled(disk, blocks(layers=1, bias=False), data(1), LAYERS)
    for name in ("down.weight",):
        own, their = (trace.grads[0][f"_orig_mod.layers.0.{name}"] for trace in (run.ours, run.theirs))
        assert own is not None and their is not None and torch.equal(own, their)
    assert_equal_but_for_rounding(run)


@pytest.mark.parametrize("form", FORMS)
def test_any_use_of_a_weight_computes_what_it_does_whole(form: str, disk: Path) -> None:
    use, shape = FORMS[form]
    run = tiled(disk, Using(use, *shape), data(), {"weight": 2})
    assert_equal_but_for_rounding(run)
    assert_on_nvme(run.model, "param", "grad", "state")
    used_in_tiles = form != "of many products"
    assert any(name.endswith("/1") for name in run.regions()) == used_in_tiles


def test_more_tiles_than_rows_can_be_cut_into(disk: Path) -> None:
    run = tiled(disk, blocks(layers=1), data(), {"*": 1000})
    assert_equal_but_for_rounding(run)
    assert tiles(run, "fwd/layers.0.up") == tiles(run, "fwd/layers.0.down") == 8


def test_rows_whose_number_no_factor_divides(disk: Path) -> None:
    run = tiled(disk, blocks(layers=1, width=72), data(width=72), {"*": 2})  # 8192 bytes are no multiple of its rows
    assert_equal_but_for_rounding(run)
    assert tiles(run, "fwd/layers.0.up") == 2


class Tied(torch.nn.Module):
    """The head has the embedding's weight, as in many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(96, 64)
        self.head = torch.nn.Linear(64, 96)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.head(self.embedding(x).tanh()), labels)


def test_a_head_whose_weight_is_the_embedding(disk: Path) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, 96, (2, 12))
    run = tiled(disk, Tied(), [{"x": i, "labels": i.roll(1)} for i in ids], {"*": 3})
    assert_equal_but_for_rounding(run)
    assert_on_nvme(run.model, "param", "grad", "state")
    assert tiles(run, "fwd/embedding") == tiles(run, "bwd/embedding") == 3
    sizes = {v.name: v.nbytes for v in zcompiler.schedule(run.model)["graph0"].values}
    assert sizes["embedding.weight/0"] * 3 == sizes["embedding"] == 96 * 64 * 4


def test_autocast_gathers_rows_of_the_copies_in_16_bits(disk: Path) -> None:
    def loss(model: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(**data(1)[0])

    read = []
    for count in (1, 4):
        torch._dynamo.reset()
        (folder := disk / str(count)).mkdir()
        model = with_zinf(blocks(layers=1), folder, tile={"*": count}, place=ALL_ON_NVME)
        loss(model).backward()
        assert torch.equal(loss(model), loss(stock(blocks(layers=1))))
        names = [v.name for v in zcompiler.schedule(model)["graph0"].values]
        assert ("layers.0.up.weight/3:bf16" in names) == (count == 4)
        read.append(moved(model, "param")[0])
    assert read[1] <= 1.1 * read[0]


def test_bf16_parameters(disk: Path) -> None:
    run = tiled(disk, blocks(layers=1).bfloat16(), data(dtype=torch.bfloat16), LAYERS)
    assert_equal_but_for_rounding(run, 2**-7)
    assert_on_nvme(run.model, "param", "grad", "state")
    assert tiles(run, "fwd/layers.0.up") == 4


def test_equal_tiles_of_equal_layers_are_compiled_once(disk: Path) -> None:
    compiled = []
    for factor in (2, 8):
        torch._dynamo.reset()
        (disk / str(factor)).mkdir()
        run = tiled(disk / str(factor), blocks(layers=3), data(1), {"*": factor})
        assert tiles(run, "fwd/layers.2.up") == factor
        compiled.append(run.stats.regions_compiled)
    assert compiled[0] == compiled[1]


def test_inductor_computes_tiles(disk: Path) -> None:
    run = tiled(disk, blocks(layers=1), data(1), {"*.down": 4}, compute="inductor")
    assert_equal_but_for_rounding(run)
    assert_on_nvme(run.model, "param", "grad", "state")
    assert tiles(run, "fwd/layers.0.down") == tiles(run, "bwd/layers.0.down") == 4


def test_a_step_in_tiles_moves_the_same_bytes(disk: Path) -> None:
    read = {}
    for factor in (1, 4):
        torch._dynamo.reset()
        (disk / str(factor)).mkdir()
        run = tiled(disk / str(factor), blocks(bias=False), data(3), {"*": factor}, late=False, prefetch=0)
        read[factor] = [moved(run.model, kind) for kind in ("param", "grad", "state")]
    assert read[4] == read[1]


def least_memory(folder: Path, model: torch.nn.Module, factor: int) -> int:
    """What a refusal says the least is, in KiB."""
    torch._dynamo.reset()
    with pytest.raises(Exception, match="memory=1B is too small") as refused:
        with_zinf(copy.deepcopy(model), folder, place=ALL_ON_NVME, tile={"*": factor}, memory=1)(**SHORT)
    assert isinstance(getattr(refused.value, "inner_exception", None), DoesNotFit)
    found = re.search(r"any placement needs is ([0-9.]+)(B|KiB|MiB)", str(refused.value))
    assert found is not None
    return int(float(found[1]) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[found[2]])


def test_a_model_fits_in_tiles_where_it_does_not_fit_whole(disk: Path) -> None:
    model = blocks(layers=1, width=512, bias=False)  # two matrices of 4 MiB
    least = {factor: least_memory(disk, model, factor) for factor in (1, 2, 4)}
    assert least[1] > 20 << 20 > 3.5 * least[4]
    assert least[2] < 0.51 * least[1] and least[4] < 0.52 * least[2]
    run = tiled(disk, model, [SHORT], {"*": 4}, memory=least[4] + 1)
    assert_equal_but_for_rounding(run)
    assert run.stats.peak["host"] <= run.stats.planned_peak["host"] <= least[4] + 1


def test_nothing_changes_where_weights_rest_in_memory(disk: Path) -> None:
    run = tiled(disk, blocks(), data(), LAYERS, place=ON_HOST)
    assert_same(run.ours, run.theirs)
    assert not any("/0" in name for name in run.regions())


def test_the_plan_leaves_tiled_weights_on_nvme_and_takes_back_what_else_fits(disk: Path) -> None:
    model, batch = blocks(layers=1, width=256, bias=False), data(2, width=256, tokens=1)  # two matrices of 1 MiB
    options: dict[str, Any] = {"place": {}, "memory": "4MiB"}
    run = tiled(disk, model, batch, {"*.up": 4}, **options)
    assert_equal_but_for_rounding(run)
    homes = {v.name: v.home for v in zcompiler.schedule(run.model)["graph0"].values if v.kind in ("param", "grad")}
    assert {homes[f"layers.0.up.weight/{i}"] for i in range(4)} == {"nvme"}
    assert len({homes[f"layers.0.up.weight/{i}:grad"] for i in range(4)}) == 1
    assert homes["layers.0"] == "host"
    assert run.stats.peak["host"] <= 4 << 20

    torch._dynamo.reset()
    roomy = tiled(disk, model, batch, {"*.up": 4}, **options | {"memory": "64MiB"})
    assert_same(roomy.ours, roomy.theirs)
    assert not any("/" in v.name for v in zcompiler.schedule(roomy.model)["graph0"].values)


def test_evaluation_accumulation_and_a_second_backward(disk: Path) -> None:
    own = pair(disk, blocks(layers=1), steps=0, tile=LAYERS, place=ALL_ON_NVME)
    first, second = data(2)

    def act(side: Side) -> torch.Tensor:
        with torch.no_grad():
            before = side.forward(first)
        side.forward(first).backward()
        loss = side.forward(second)
        loss.backward(retain_graph=True)
        loss.backward()
        side.optimizer.step()
        grads = torch.cat([p.grad.flatten() for p in side.module.parameters()])
        side.optimizer.zero_grad()
        return torch.cat([grads, before[None], side.forward(second).detach()[None]])

    for _ in range(2):
        with torch._functorch.config.patch(donated_buffer=False):
            ours, theirs = own.each(act)
        assert torch.linalg.vector_norm(ours - theirs) <= 1e-5 * torch.linalg.vector_norm(theirs)
    regions = {name: [r.name for r in s.regions] for name, s in zcompiler.schedule(own.ours.model).items()}
    assert all("fwd/layers.0.up/3" in regions[graph] for graph in ("graph0", "graph1"))


def test_batches_of_many_sizes_share_a_graph(disk: Path) -> None:
    batches = [data(1, tokens=tokens)[0] for tokens in (5, 9, 3, 7)]
    run = tiled(disk, blocks(layers=1), batches, LAYERS)
    assert_equal_but_for_rounding(run)
    assert run.stats.graphs == 1


def test_a_name_that_no_parameter_has_is_an_error(disk: Path) -> None:
    with pytest.raises(Exception, match=r"'layer\.\*' is the name of no module or parameter") as refused:
        with_zinf(blocks(), disk, tile={"layers.0": 2, "layer.*": 2})(**data(1)[0])
    assert isinstance(getattr(refused.value, "inner_exception", None), OptionError)
    assert "(which has 8, such as layers." in str(refused.value)


def test_the_dump_shows_tiles(disk: Path) -> None:
    run = tiled(disk, blocks(layers=1), data(1), {"*.up": 2}, dump=str(disk))
    assert tiles(run, "fwd/layers.0.up") == 2 and tiles(run, "fwd/layers.0.down") == 0
    text = next((disk / "graph0").glob("*final.zsched")).read_text()
    assert "value layers.0.up.weight/1 param f32 32KiB" in text
    assert "layers.0.up.weight: 2 tiles of up to 128 rows" in (disk / "graph0" / "plan.txt").read_text()


@pytest.mark.parametrize("choice", ["nvme", "recompute"])
def test_activations_that_go_to_nvme_or_are_computed_again(choice: str, disk: Path) -> None:
    run = tiled(disk, blocks(), data(), LAYERS, activations=choice)
    assert_equal_but_for_rounding(run)
    assert tiles(run, "fwd/layers.1.down") == 4
    read, written = moved(run.model, "act")
    assert (read > 0, written > 0) == ((True, True) if choice == "nvme" else (False, False))
