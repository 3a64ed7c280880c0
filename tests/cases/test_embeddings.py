"""Embedding tables that users index, zero and resize, and that write to themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.cases.both import Batch, assert_moved, on_nvme_and_on_host, sgd, train, twins
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import Pair, Side, adamw

PAD = 3


def batch(seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(seed))
    return {"ids": ids.index_fill(1, torch.tensor([5]), PAD)}


IDS = [batch(i) for i in range(4)]


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=PAD)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids).tanh()).square().mean()


def padded() -> nn.Module:
    torch.manual_seed(10)
    module = Padded()
    nn.init.normal_(module.embedding.weight)  # the row of the padding too, as when training from scratch
    return module


@torch.no_grad()
def zero_row(side: Side) -> None:
    weight = side.module.embedding.weight
    assert weight[PAD].shape == (8,)
    weight[PAD] = 0
    assert not weight[PAD].any()


def zero_row_of_data(side: Side) -> None:
    side.module.embedding.weight.data[PAD].zero_()


def reset(side: Side) -> None:
    torch.manual_seed(11)
    side.module.embedding.reset_parameters()  # ends with zeroing the row


def of_the_row(side: Side) -> torch.Tensor:
    grad = side.module.embedding.weight.grad
    assert grad is not None
    assert not grad[PAD].any()
    return grad[PAD].clone()


def assert_row_is_zero(own: Pair) -> None:
    for side in own.sides():
        assert not side.module.embedding.weight[PAD].any()
        assert side.module.embedding.weight.any()


@on_nvme_and_on_host
def test_the_row_of_the_padding_zeroed_after_compiling(place: Mapping[str, str], disk: Path) -> None:
    own = twins(disk, padded(), place=place)
    own.each(zero_row)
    train(own, IDS[:3], before_step=of_the_row)
    assert_row_is_zero(own)
    assert_moved(own, place, "param", "grad", "state")


def test_the_row_of_the_padding_zeroed_in_other_ways_between_steps(disk: Path) -> None:
    own = twins(disk, padded())
    ways: tuple[Callable[[Side], None], ...] = (zero_row, zero_row_of_data, reset)
    for zero in ways:
        own.each(lambda side: nn.init.normal_(side.module.embedding.weight, generator=torch.Generator().manual_seed(1)))
        train(own, IDS[:1])
        own.each(zero)
        for side in own.sides():
            side.optimizer = adamw(side.module.parameters())  # momentum would move it again
        train(own, IDS[1:], before_step=of_the_row)
        assert_row_is_zero(own)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


def small_bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(12)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=8, pad_token_id=PAD,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).train()


@pytest.mark.full
def test_a_bert_whose_padding_is_zeroed_after_compiling_and_whose_vocabulary_grows(disk: Path) -> None:
    own = twins(disk, small_bert())

    def rows(side: Side) -> torch.Tensor:
        return side.module.embeddings.word_embeddings.weight

    @torch.no_grad()
    def fill_and_zero(side: Side) -> None:
        rows(side).normal_(generator=torch.Generator().manual_seed(1))
        rows(side)[PAD].zero_()

    def backward(side: Side, batch: Batch) -> torch.Tensor:
        torch.manual_seed(7)
        loss = side.model(batch["ids"]).last_hidden_state[..., 0].square().mean()
        loss.backward()
        return loss.detach()

    def grow(side: Side) -> None:
        torch.manual_seed(12)
        side.module.resize_token_embeddings(27, mean_resizing=False)
        side.optimizer = adamw(side.module.parameters())

    own.each(fill_and_zero)
    train(own, IDS[:3], backward=backward)
    assert not rows(own.ours)[PAD].any()
    own.each(grow)
    assert not rows(own.ours)[PAD].any()
    train(own, IDS[:2], backward=backward)
    assert rows(own.ours).shape == (27, 8)
    assert not rows(own.ours)[PAD].any()
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")


class Limited(nn.Module):
    """Forward itself scales the rows that it uses down to a norm, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, max_norm=1.0, padding_idx=PAD)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids)).square().mean()


def test_a_table_that_forward_itself_writes_to(disk: Path) -> None:
    torch.manual_seed(13)
    own = twins(disk, Limited(), sgd)
    used = IDS[0]["ids"].unique()
    assert own.ours.module.embedding.weight[used].norm(dim=1).max() > 1
    train(own, IDS[:1])
    own.same(lambda side: side.forward(IDS[0]).detach())
    assert own.ours.module.embedding.weight[used].norm(dim=1).max() <= 1 + 1e-5
    train(own, IDS)
    assert_moved(own, ALL_ON_NVME, "param", "grad")


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(20, 8, padding_idx=PAD, mode="sum")
        self.head = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids)).square().mean()


def test_bags_of_embeddings_with_padding(disk: Path) -> None:
    torch.manual_seed(14)
    own = twins(disk, Bags())
    own.each(zero_row)
    train(own, IDS[:3], before_step=of_the_row)
    assert_row_is_zero(own)
    assert_moved(own, ALL_ON_NVME, "param", "grad", "state")
