"""Batches longer than the plan holds for: planned anew, or refused with a number that does, never over the limit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.around.test_lengths import text
from tests.right.models import built, decoder
from tests.right.twins import ALL_ON_NVME, assert_on_nvme, with_zinf
from tests.training.pair import Pair, Side, pair
from zcompiler.errors import DoesNotFit

LIMIT = 1 << 20
OPTIONS: dict[str, Any] = {"place": ALL_ON_NVME, "activations": "keep"}


def step(own: Pair, length: int) -> None:
    own.same(partial(Side.step, batch=text(length)))


def held_up_to(model: Any) -> int:
    """The length up to which the last plan holds, as `stats` says it."""
    (said,) = list(zcompiler.stats(model).holds.values())[-1]
    what, _, rest = said.partition(" up to ")
    assert what.endswith(".size()[1]") and " (planned at " in rest
    return int(rest.split()[0])


def test_a_length_beyond_the_plan_gets_a_plan_of_its_own_or_is_refused(disk: Path) -> None:
    own = pair(disk, built(decoder, 3), steps=0, memory=LIMIT, **OPTIONS)
    for length in (5, 9):
        step(own, length)
    most = held_up_to(own.ours.model)
    for length in (most, 7, most + 1):
        assert zcompiler.stats(own.ours.model).graphs == 2
        step(own, length)
    stats = zcompiler.stats(own.ours.model)
    assert stats.graphs == 3 and LIMIT // 2 < stats.peak["host"] <= LIMIT
    again = held_up_to(own.ours.model)
    assert most < again < 600
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        own.ours.model(**text(600))
    assert isinstance(caught.value.inner_exception, DoesNotFit)
    assert str(caught.value.inner_exception).startswith(
        f"memory=1MiB is too small for L['input_ids'].size()[1] of 600, beyond the {again} up to which a plan holds: "
    )
    step(own, again)  # what was refused has changed nothing
    own.assert_equal_weights()
    assert_on_nvme(own.ours.model, "param", "grad", "state")


class Scores(torch.nn.Module):
    """What it holds grows with the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        return self.down(torch.softmax(x @ x.mT, -1) @ x).square().mean()


def test_the_number_of_a_refusal_is_the_least_that_does(disk: Path) -> None:
    def until(limit: int) -> Any:
        torch._dynamo.reset()
        model = with_zinf(Scores(), disk, memory=limit, **OPTIONS)
        for length in (5, 9):
            model(torch.randn(2, length, 64)).backward()
        return model

    def least(model: Any, length: int) -> int:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="size.*of 400, beyond the") as caught:
            model(torch.randn(2, length, 64))
        assert isinstance(caught.value.inner_exception, DoesNotFit)
        return caught.value.inner_exception.least

    needed = least(until(LIMIT), 400)
    assert needed > LIMIT
    assert least(until(needed - 1), 400) == needed
    model = until(needed)
    model(torch.randn(2, 400, 64)).backward()
    assert LIMIT < zcompiler.stats(model).peak["host"] <= needed
    assert held_up_to(model) >= 400


def test_an_evaluation_holds_up_to_a_length_of_its_own(disk: Path) -> None:
    model = with_zinf(built(decoder, 1).eval(), disk, memory=LIMIT, place={"params": "nvme"})
    with torch.no_grad():
        for length in (5, 9):
            model(**text(length))
        most = held_up_to(model)
        model(**text(most))
        assert zcompiler.stats(model).graphs == 2 and zcompiler.stats(model).peak["host"] <= LIMIT
    assert zcompiler.stats(model).read["nvme"]["param"] > 0


def test_where_two_sizes_change_both_may_grow_together(disk: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    options = {"memory": LIMIT, "nvme": str(disk), "compute": "eager", "place": ALL_ON_NVME}
    compiled = torch.compile(model, backend="zinf", options=options, dynamic=True)
    compiled(torch.randn(3, 10, 64)).sum().backward()
    stats = zcompiler.stats(compiled)
    (held,) = stats.holds.values()
    rows, length = (int(one.split(" up to ")[1].split()[0]) for one in held)
    assert 3 < rows < length and abs(rows / 3 - length / 10) < 1
    compiled(torch.randn(rows, length, 64)).sum().backward()
    stats = zcompiler.stats(compiled)
    assert stats.graphs == 1 and LIMIT // 2 < stats.peak["host"] <= LIMIT


def test_a_size_that_does_not_matter_is_never_planned_anew(disk: Path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum() * rows.shape[0]

    options = {"memory": LIMIT, "nvme": str(disk), "compute": "eager", "place": ALL_ON_NVME}
    compiled = torch.compile(Counting(), backend="zinf", options=options)
    x = torch.randn(4, 64)
    for rows in (3, 5, 1 << 20):
        compiled(x, torch.empty(rows, 0)).backward()
    stats = zcompiler.stats(compiled)
    assert stats.graphs == 2
    assert stats.holds == {"graph1": ("L['rows'].size()[0] of any number (planned at 5)",)}
