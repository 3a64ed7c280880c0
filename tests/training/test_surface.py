from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.models import built, mlp
from tests.right.twins import ALL_ON_NVME, assert_equal, gradients, moved, with_zinf
from tests.training.pair import DATA, Pair, Side, pair
from zcompiler.schedule.text import parse_schedule
from zcompiler.schedule.verify import verify


@pytest.fixture
def own(disk: Path) -> Pair:
    return pair(disk, place=ALL_ON_NVME)


def test_stats_count_from_the_first_compile_or_the_last_reset(own: Pair) -> None:
    for model in (own.ours.module, own.ours.model):
        stats = zcompiler.stats(model)
        assert stats.steps == 2
        assert 0 <= time.time() - stats.since < 600
        assert set(stats.read) == set(stats.written) == {"nvme"}
        for kind in ("param", "grad", "state"):
            assert stats.read["nvme"][kind] > 0
            assert stats.written["nvme"][kind] > 0
        assert 0 < stats.peak["host"] <= 256 << 20
        assert 0 < stats.planned_peak["host"] <= 256 << 20
        assert set(stats.hidden) == set(stats.exposed) == {"nvme_read", "nvme_write"}
        assert all(seconds >= 0 for lane in (stats.hidden, stats.exposed) for seconds in lane.values())
        assert (stats.graphs, stats.fallbacks) == (1, ())
        assert stats.regions_compiled > 0

    compiled = stats.regions_compiled
    zcompiler.reset_stats(own.ours.model)
    stats = zcompiler.stats(own.ours.model)
    assert (stats.steps, stats.graphs, stats.regions_compiled) == (0, 1, compiled)
    assert not any(stats.read["nvme"].values()) and not any(stats.written["nvme"].values())
    own.same(partial(Side.step, batch=DATA[0]))
    assert zcompiler.stats(own.ours.model).steps == 1
    assert moved(own.ours.model, "param")[0] > 0


def test_bytes_of_a_step_are_what_the_schedules_say(disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME, late=False)
    zcompiler.reset_stats(own.ours.model)
    own.ours.step(DATA[0])
    stats = zcompiler.stats(own.ours.model)
    said = dict.fromkeys([(op, kind) for op in ("read", "write") for kind in ("param", "grad", "state")], 0)
    for schedule in zcompiler.schedule(own.ours.model).values():
        for _, op in schedule.ops():
            if op.kind in ("read", "write"):
                value = schedule.value(op.value)
                said[op.kind, value.kind] += value.nbytes
    for kind in ("param", "grad", "state"):
        assert (stats.read["nvme"][kind], stats.written["nvme"][kind]) == (said["read", kind], said["write", kind])


def test_schedules_are_texts_that_parse_back_and_verify(own: Pair) -> None:
    own.ours.model.eval()
    with torch.no_grad():
        own.ours.forward(DATA[0])
    schedules = zcompiler.schedule(own.ours.model)
    assert schedules.keys() == zcompiler.schedule(own.ours.module).keys() == {"graph0", "graph1", "update"}
    for schedule in schedules.values():
        assert parse_schedule(str(schedule)) == schedule
        assert verify(schedule) == []


def test_the_dump_holds_the_schedules_in_use(disk: Path, tmp_path: Path) -> None:
    own = pair(disk, dump=str(tmp_path / "dump"))
    for name, schedule in zcompiler.schedule(own.ours.model).items():
        final = sorted((tmp_path / "dump" / name).glob("*.zsched"))[-1]
        assert final.name.endswith("-final.zsched")
        assert final.read_text() == str(schedule)
    assert "pipeline: " in (tmp_path / "dump" / "graph0" / "plan.txt").read_text()


def test_nothing_can_be_asked_before_the_first_call(disk: Path) -> None:
    module = built(mlp)
    for model in (module, with_zinf(module, disk)):
        for ask in (zcompiler.stats, zcompiler.reset_stats, zcompiler.schedule):
            with pytest.raises(zcompiler.ZinfError, match="run it once"):
                ask(model)
        zcompiler.restore(model)
    with pytest.raises(TypeError, match="not int"):
        zcompiler.stats(3)


@pytest.mark.parametrize("form", ["module", "model"])
def test_restore_brings_all_back(form: str, disk: Path) -> None:
    own = pair(disk, place=ALL_ON_NVME)
    for side in own.sides():
        side.forward(DATA[2]).backward()
    zcompiler.restore(getattr(own.ours, form))
    own.assert_equal_weights()
    own.assert_equal_gradients()

    def eager_step(side: Side, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(5)
        side.optimizer.step()
        side.optimizer.zero_grad()
        loss = side.module(**batch)
        loss.backward()
        return loss.detach()

    for batch in DATA[:3]:
        own.same(partial(eager_step, batch=batch))
        own.assert_equal_gradients()
    own.assert_equal_weights()
    with pytest.raises(zcompiler.ZinfError, match="run it once"):
        zcompiler.stats(own.ours.model)

    for side in own.sides():
        side.optimizer.zero_grad()
    own.goes_on()  # the compiled form takes it over again
    assert all(count > 0 for count in moved(own.ours.model, "state"))


def test_eval_between_steps(own: Pair) -> None:
    @torch.no_grad()
    def evaluate(side: Side) -> torch.Tensor:
        side.model.eval()
        loss = side.forward(DATA[3])
        side.model.train()
        return loss

    for _ in range(2):
        own.same(evaluate)
        own.goes_on()


def test_inference_mode_before_and_between_steps(disk: Path) -> None:
    own = pair(disk, steps=0)

    def infer(side: Side) -> torch.Tensor:
        with torch.inference_mode():
            return side.forward(DATA[3]).clone()

    for _ in range(2):
        own.same(infer)
        own.goes_on()


def test_frozen_parameters_stay_and_can_be_thawed(disk: Path) -> None:
    module = built(mlp)
    module.layers[0].requires_grad_(False)
    module.layers[1].bias.requires_grad_(False)
    before = module.layers[0].weight.detach().clone()
    own = pair(disk, module)
    assert torch.equal(own.ours.module.layers[0].weight, before)
    for side in own.sides():
        side.module.requires_grad_(True)
    own.goes_on()
    assert gradients(own.ours.module) == gradients(own.theirs.module)
    assert not torch.equal(own.ours.module.layers[0].weight, before)


class Strange(torch.nn.Module):
    """A 0-dim parameter, one of one element, an empty one, a transposed one and a slice of a larger storage."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.one = torch.nn.Parameter(torch.randn(1))
        self.empty = torch.nn.Parameter(torch.empty(0, 7))
        self.turned = torch.nn.Parameter(torch.randn(7, 9).t())
        self.part = torch.nn.Parameter(torch.randn(4, 9)[1:3])
        self.last = torch.nn.Linear(9, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.scale * x @ self.turned.t() + self.one
        x = torch.cat([x, self.empty.sum() + x @ self.part.t()], 1)[:, :9]
        return torch.nn.functional.mse_loss(self.last(x), labels)


def test_parameters_of_strange_forms(disk: Path) -> None:
    torch.manual_seed(0)
    own = pair(disk, Strange())
    own.goes_on()
    said = zcompiler.stats(own.ours.model).fallbacks
    assert len(said) == 1 and said[0].startswith("parameter part ")


class Tied(torch.nn.Module):
    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 64)
        self.middle = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 40, bias=False)
        if tie:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.middle(self.embedding(ids)).tanh())
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def test_tied_weights_are_one_on_nvme(disk: Path) -> None:
    torch.manual_seed(0)
    batch = {"ids": torch.randint(0, 40, (2, 6))}
    written, states = [], []
    for tie in (True, False):
        own = pair(disk, Tied(tie), steps=0, memory=f"{64 + tie}MiB")
        own.same(lambda side: side.forward(batch).detach())
        written.append(moved(own.ours.model, "param")[1])  # by taking them over
        for _ in range(3):
            own.same(partial(Side.step, batch=batch))
        own.assert_equal_weights()
        states.append(moved(own.ours.model, "state")[1])
        assert (own.ours.module.head.weight is own.ours.module.embedding.weight) == tie
    weight = -(-40 * 64 * 4 // 4096) * 4096
    assert written[1] - written[0] == weight
    assert states[1] - states[0] == 3 * 2 * weight


def test_models_with_the_same_options_share_a_session_and_train_apart(disk: Path) -> None:
    first = pair(disk, steps=0)
    second = pair(disk, steps=0)
    for batch in DATA[:2]:
        for own in (first, second):
            own.same(partial(Side.step, batch=batch))
    first.goes_on()
    second.goes_on()
    assert zcompiler.stats(first.ours.model) == zcompiler.stats(second.ours.model)
    assert zcompiler.stats(first.ours.model).steps == 8
    assert_equal(
        dict(first.ours.module.named_parameters()), dict(second.ours.module.named_parameters()), "weight of the other"
    )
