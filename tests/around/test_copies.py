"""Copies, averages and checkpoints of a model whose weights rest on nvme."""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.right.models import mlp
from tests.right.twins import ALL_ON_NVME, assert_equal, assert_on_nvme, copied, with_zinf
from tests.training.pair import DATA, Pair, Side, adamw, pair

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("steps", [0, 2], ids=["before the first step", "after it"])
def test_an_average_of_the_weights_follows_the_training(steps: int, disk: Path) -> None:
    own = pair(disk, steps=steps)
    averages = own.each(lambda side: AveragedModel(side.module, multi_avg_fn=get_ema_multi_avg_fn(0.75)))
    for batch in DATA:
        own.same(partial(Side.step, batch=batch))
        for side, average in zip(own.sides(), averages, strict=True):
            average.update_parameters(side.module)
        assert_equal(averages[0].state_dict(), averages[1].state_dict(), "average")
    assert_on_nvme(own.ours.model, "param", "state")
    losses = [average.eval()(**DATA[0]).detach() for average in averages]
    assert torch.equal(*losses)
    # The average is put in place of the weights, as for an evaluation, and training goes on from there.
    for side, average in zip(own.sides(), averages, strict=True):
        side.module.load_state_dict(average.module.state_dict())
    own.goes_on()


def test_an_average_of_the_compiled_model_runs_through_zinf_itself(disk: Path) -> None:
    own = pair(disk, backend="aot_eager")
    averages = own.each(lambda side: AveragedModel(side.model, multi_avg_fn=get_ema_multi_avg_fn(0.75)))
    for batch in DATA[:2]:
        own.same(partial(Side.step, batch=batch))
        for side, average in zip(own.sides(), averages, strict=True):
            average.update_parameters(side.model)
            with torch.no_grad():
                average.eval()(**batch)
    losses = [average(**DATA[0]).detach() for average in averages]
    assert torch.equal(*losses)
    assert_equal(averages[0].state_dict(), averages[1].state_dict(), "average")
    own.goes_on()


def test_a_deepcopy_of_the_compiled_model_trains_on_nvme_and_apart(disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME)

    def twin(side: Side) -> Side:
        model, module = copy.deepcopy((side.model, side.module))
        optimizer = adamw(module.parameters())
        optimizer.load_state_dict(copy.deepcopy(side.optimizer.state_dict()))
        return Side(module, model, optimizer)

    copies = Pair(*own.each(twin))
    copies.goes_on()
    before = copied(dict(copies.ours.module.named_parameters()))
    own.goes_on()
    assert_equal(dict(copies.ours.module.named_parameters()), before, "weight of the copy")
    copies.goes_on()
    assert_on_nvme(copies.ours.model, "param", "grad", "state")


def test_a_checkpoint_loads_into_a_new_model_of_the_same_process(disk: Path, tmp_path: Path) -> None:
    own = pair(disk)
    for i, side in enumerate(own.sides()):
        torch.save({"model": side.module.state_dict(), "optimizer": side.optimizer.state_dict()}, tmp_path / f"{i}.pt")
    file = torch.load(tmp_path / "0.pt")
    assert_equal(file["model"], torch.load(tmp_path / "1.pt")["model"], "saved weight")
    module = mlp()
    fresh = Side(module, with_zinf(module, disk, place=ALL_ON_NVME), adamw(module.parameters()))
    module.load_state_dict(file["model"])
    fresh.optimizer.load_state_dict(file["optimizer"])
    Pair(fresh, own.theirs).goes_on()
    assert_on_nvme(fresh.model, "param", "grad", "state")


@pytest.mark.full
def test_a_checkpoint_loads_into_a_new_process(disk: Path, tmp_path: Path) -> None:
    own = pair(disk)
    saved, back = tmp_path / "saved.pt", tmp_path / "back.pt"
    torch.save({"model": own.ours.module.state_dict(), "optimizer": own.ours.optimizer.state_dict()}, saved)
    command = [sys.executable, "-m", "tests.around.resumed", str(disk), str(saved), str(back)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    own.theirs.step(DATA[2])
    own.theirs.step(DATA[3])
    file = torch.load(back)
    assert_equal(file["model"], own.theirs.module.state_dict(), "weight of the resumed run")
    states = own.theirs.optimizer.state_dict()["state"]
    assert file["optimizer"]["state"].keys() == states.keys()
    for slot, state in states.items():
        assert_equal(file["optimizer"]["state"][slot], state, f"state of parameter {slot}:")
