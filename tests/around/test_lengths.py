"""Batches of many lengths: few graphs, and past torch's limit of graphs still the right numbers."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.models import VOCABULARY, Make, built, decoder, llama
from tests.right.twins import ALL_ON_NVME, assert_on_nvme
from tests.training.pair import Side, pair


def text(length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("make", [decoder, pytest.param(llama, marks=pytest.mark.full)], ids=lambda make: make.__name__)
def test_twelve_lengths_give_at_most_two_graphs(make: Make, disk: Path) -> None:
    own = pair(disk, built(make, 1), steps=0)
    lengths = (5, 9, 3, 14, 7, 11, 4, 13, 6, 10, 8, 12)
    for length in lengths:
        own.same(partial(Side.step, batch=text(length)))
    own.assert_equal_weights()
    assert_on_nvme(own.ours.model, "param", "state")
    stats = zcompiler.stats(own.ours.model)
    assert (stats.steps, stats.graphs <= 2) == (len(lengths), True), f"{stats.graphs} graphs"


class Warnings(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def test_more_lengths_than_torch_makes_graphs_for_are_right_and_warned_of(disk: Path) -> None:
    heard = Warnings()
    log = logging.getLogger("torch._dynamo.convert_frame")
    log.addHandler(heard)
    try:
        with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
            own = pair(disk, built(decoder, 1), steps=0, place=ALL_ON_NVME)
            lengths = (5, 9, 3, 5, 14, 9)
            for length in lengths:
                own.same(partial(Side.step, batch=text(length)))
                own.assert_equal_weights()
    finally:
        log.removeHandler(heard)
    assert any("hit config.recompile_limit (2)" in said for said in heard.said)
    assert zcompiler.stats(own.ours.model).graphs < len(set(lengths)), "no call ran past the limit"
    assert zcompiler.stats(own.ours.model).steps == len(lengths)
    assert_on_nvme(own.ours.model, "param", "grad", "state")
