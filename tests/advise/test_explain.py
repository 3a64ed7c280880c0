"""`zcompiler.explain`: what it says adds up, and each change it names was really planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import zcompiler
from zcompiler.advise.explained import GATHERED, GRADIENTS, TEMPORARIES, Explained
from zcompiler.describe.described import Schedules
from zcompiler.errors import DoesNotFit
from zcompiler.schedule.memory import peak

MIB = 1 << 20
OPTIONS = {"memory": "3MiB", "compute": "eager", "machine": "laptop"}
UNIT = (256 + 4) * 1024  # a layer's weight, and its bias on a boundary where direct I/O may begin
BATCH = (torch.zeros(32, 256),)


def layers(count: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(count)))


def explained(**options: object) -> Explained:
    return zcompiler.explain(layers(), BATCH, options={**OPTIONS, **options})


@pytest.fixture(scope="module")
def found() -> Explained:
    return explained()


def described(batch: Any = BATCH, **options: object) -> Schedules:
    return zcompiler.schedule(layers(), batch, options={**OPTIONS, **options})


def test_neighbours_with_the_same_homes_are_one_group_and_all_bytes_are_there(found: Explained) -> None:
    homes = described().graphs[0].plan.placement
    assert [unit for group in found.groups for unit in group.units] == list(homes)
    for group in found.groups:
        assert all({kind: getattr(homes[u], kind) for kind in group.homes} == group.homes for u in group.units)
    whole = 4 * UNIT
    assert sum(group.sizes["params"] for group in found.groups) == whole
    assert sum(group.sizes["optimizer"] for group in found.groups) == 2 * whole
    assert found.activations == {"host": 3 * 32 * 256 * 4}  # the input of the first layer is the user's


def test_what_a_peak_is_made_of_adds_up_to_it(found: Explained) -> None:
    planned = described()
    assert planned.update is not None
    for schedule, one in zip((planned.graphs[0].final, planned.update), found.peaks, strict=True):
        assert (one.nbytes, one.at) == peak(schedule)["host"] and one.tier == "host"
        assert sum(holding.nbytes for holding in one.holdings) == one.nbytes <= 3 * MIB
    kinds = {holding.kind: holding for one in found.peaks for holding in one.holdings}
    assert kinds[GRADIENTS].largest[0][1] == UNIT and TEMPORARIES in kinds and GATHERED not in kinds


def test_the_waits_of_a_lane_have_causes_that_add_up(found: Explained) -> None:
    step = found.step
    assert step is not None and step.waited > 0
    for lane in step.lanes:
        assert sum(cause.seconds for cause in lane.causes) == pytest.approx(lane.exposed + lane.at_end)
    causes = [cause for lane in step.lanes for cause in lane.causes]
    assert any(cause.what == "the update waits for the read of optimizer states" for cause in causes)
    assert step.seconds == pytest.approx(sum(s for _, s in step.phases) + step.in_place)


def test_the_changes_are_what_planning_with_them_gives(found: Explained) -> None:
    everything, *_ = found.helpful
    assert everything.what.endswith(", where all fits")
    assert [change.gain for change in found.helpful] == sorted((c.gain for c in found.helpful), reverse=True)
    for change in (c for c in (*found.helpful, *found.others) if c.part == 1):
        again = zcompiler.explain(layers(), BATCH, options={**OPTIONS, **change.options}, tries=False)
        assert again.now == change.after and again.helpful == again.others == ()
    memory = everything.options["memory"]
    assert isinstance(memory, int)
    assert not described(memory=memory).graphs[0].plan.uses("nvme")
    assert described(memory=memory - MIB).graphs[0].plan.uses("nvme")


def test_what_a_user_forced_is_tried_without() -> None:
    forced = explained(memory="4MiB", place={"params": "nvme"}, prefetch=0, activations="nvme", late=False)
    tried = {change.what for change in (*forced.helpful, *forced.others)}
    assert {"place: auto for each", "prefetch=auto", "activations=auto", "late=True"} < tried
    assert forced.helpful[0].gain >= 0.01


def test_half_a_batch_is_compared_by_the_time_of_a_whole_one(found: Explained) -> None:
    assert found.now is not None
    (half,) = [change for change in (*found.helpful, *found.others) if change.part == 0.5]
    assert half.what == "half the batch, 16 of 32" and half.after is not None
    assert half.gain == pytest.approx(1 - 2 * half.after.seconds / found.now.seconds)


class Picky(nn.Module):
    """Takes one size of batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 8:
            raise ValueError("eight tokens")
        return self.head(self.embedding(x)).sum()


def test_a_model_that_takes_no_other_batch_is_explained_all_the_same() -> None:
    found = zcompiler.explain(Picky(), (torch.zeros(1, 8, dtype=torch.int64),), options={**OPTIONS, "memory": "1MiB"})
    (half,) = [change for change in found.others if change.part == 0.5]
    assert (half.what, half.after, half.why) == ("half the tokens, 4 of 8", None, "the model takes no such batch")


def test_where_all_fits_nothing_waits_and_no_limit_is_named() -> None:
    found = explained(memory="64MiB")
    assert found.step is not None and found.step.waited == 0 and found.step.in_place > 0
    assert not any("fits" in change.what for change in (*found.helpful, *found.others))


def test_what_does_not_fit_is_explained_by_what_would() -> None:
    with pytest.raises(DoesNotFit) as refusal:
        described(memory="512KiB")
    found = explained(memory="512KiB")
    assert found.refused == str(refusal.value) and found.step is None
    assert found.helpful[0].options == {"memory": -(-refusal.value.least // MIB) * MIB}
    assert "What would make it fit\n" in str(found)


def test_a_plan_of_which_no_step_can_be_simulated_is_explained_without_times() -> None:
    forced = {
        "activations": "nvme",
        "late": False,
    }
    found = explained(**forced)
    (note,) = found.notes
    assert note.startswith("a step cannot be simulated") and "raise the memory of host to" in note
    assert found.step is None and found.peaks and found.helpful == ()


def test_an_evaluation_is_explained() -> None:
    found = zcompiler.explain(layers(), BATCH, options={**OPTIONS, "memory": "1MiB"}, train=False)
    assert found.groups[0].homes.keys() == {"params"} and "a forward within 1MiB" in found.title


def test_two_graphs_and_their_update_are_one_step() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers(2), layers(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x).square().mean()

    found = zcompiler.explain(Broken(), BATCH, options={**OPTIONS, "memory": "4MiB"}, tries=False)
    assert [one.schedule for one in found.peaks] == ["graph0", "graph1", "update"]
    assert found.reasons[0].startswith("graph0: ") and found.step is not None
    assert [name for name, _ in found.step.phases] == ["graph0", "graph1", "update"]


def test_the_text_fits_in_80_columns_and_says_all_of_it(found: Explained) -> None:
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80 and all(line == line.rstrip() for line in lines)
    titles = ["Where states rest", "Why", "What the peaks are made of", "Where the time goes"]
    assert [line for line in lines if line in titles] == titles
    assert "What would help, by planning again" in lines
