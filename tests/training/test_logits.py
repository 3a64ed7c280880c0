"""Where logits exist: nowhere but where the model returns them, and then without a gradient of their size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import zcompiler
from tests.right.twins import ALL_ON_NVME, ON_HOST, assert_on_nvme, moved, stock, with_zinf
from tests.training.allocations import Allocations
from tests.training.losses import CLASSES, HIDDEN, Projected, batch, plain

HEAD = {"head": 4}


def both(m: Any, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = m.head(x)
    return cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits


def sides(folder: Path, module: torch.nn.Module, **options: Any) -> tuple[Any, Any]:
    return with_zinf(copy.deepcopy(module), folder, **{"tile": HEAD, "place": ALL_ON_NVME, **options}), stock(module)


def assert_same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module, relative: float = 1e-5) -> None:
    for (name, own), their in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert own.grad is not None and their.grad is not None
        assert (own.grad - their.grad).norm() <= relative * their.grad.norm(), name


def test_logits_that_nobody_differentiates_have_no_gradient(disk: Path) -> None:
    ours, theirs = sides(disk, Projected(both), dump=str(disk))
    for model in (ours, theirs):
        loss, logits = model(**batch())
        assert logits.requires_grad
        loss.backward()
    torch.testing.assert_close(logits, theirs(**batch())[1])
    assert_same_gradients(ours, theirs)
    schedule = zcompiler.schedule(ours)["graph0"]
    whole = {v.name: v.kind for v in schedule.values if v.shape and len(v.shape) > 1 and v.shape[-1] == CLASSES}
    assert list(whole.values()) == ["output"]
    assert not any({*op.reads} & {*whole} for r in schedule.regions if r.name.startswith("bwd") for op in r.ops)
    said = (disk / "graph0" / "plan.txt").read_text()
    assert "head.weight: its loss in 4 tiles of classes; the logits are returned, their gradient is in" in said


USES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "with the loss": lambda loss, logits: loss + logits.logsumexp(-1).square().mean(),
    "alone": lambda loss, logits: logits[:, 1].tanh().mean(),
}


@pytest.mark.parametrize(("use", "bias"), [("with the loss", True), ("alone", False)])
def test_a_gradient_through_returned_logits_arrives(use: str, bias: bool, disk: Path) -> None:
    ours, theirs = sides(disk, Projected(both, bias=bias))
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9) for model in (ours, theirs)]
    for step in range(3):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            USES[use](*model(**batch(seed=step))).backward()
        assert_same_gradients(ours, theirs)
        for optimizer in optimizers:
            optimizer.step()
    assert_on_nvme(ours, "param", "grad", "state")
    assert zcompiler.stats(ours).late == 2


def test_returned_logits_can_be_changed_in_place_and_a_step_is_noticed(disk: Path) -> None:
    ours, theirs = sides(disk, Projected(both))
    for model in (ours, theirs):
        loss, logits = model(**batch())
        logits[..., 3] = 0.0
        (loss + logits.square().mean()).backward()
    assert_same_gradients(ours, theirs)
    for model in (ours, theirs):
        loss, logits = model(**batch())
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (loss + logits.mean()).backward()


def test_evaluation_returns_logits(disk: Path) -> None:
    ours, theirs = sides(disk, Projected(both))
    with torch.no_grad():
        for own, their in zip(ours(**batch()), theirs(**batch()), strict=True):
            torch.testing.assert_close(own, their)
            assert not own.requires_grad


def llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=CLASSES, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def test_a_causal_language_model_of_transformers(disk: Path) -> None:
    name = "model.embed_tokens"  # has the weight of lm_head
    ours, theirs = sides(disk, llama(), tile={name: 4})
    ids = batch()["labels"]
    labels = torch.where(ids % 5 == 0, -100, ids)
    for model in (ours, theirs):
        out = model(input_ids=ids, labels=labels)
        out.loss.backward()
        assert out.logits.shape == (*ids.shape, CLASSES)
    assert_same_gradients(ours, theirs)
    regions = [r.name for r in zcompiler.schedule(ours)["graph0"].regions]
    assert f"fwd/{name}/3" in regions and f"bwd/{name}/3" in regions
    assert zcompiler.stats(ours).fallbacks == ()
    assert moved(ours, "param")[0] > 0


TOKENS, MANY = 512, 4096
LOGITS = TOKENS * MANY * 4


def step_peak(model: Any, data: dict[str, torch.Tensor]) -> int:
    """The most bytes of tensors in a step, the third, for which nothing is compiled or taken over any more."""
    for _ in range(2):
        out = model(**data)
        (out[0] if isinstance(out, tuple) else out).backward()
        model.zero_grad()
        del out
    with Allocations() as counted:
        out = model(**data)
        (out[0] if isinstance(out, tuple) else out).backward()
    model.zero_grad()
    return counted.peak


@pytest.mark.parametrize(
    ("loss", "saved", "place"),
    [(plain, 2 * LOGITS, ON_HOST), (both, LOGITS, ALL_ON_NVME)],
    ids=["loss", "loss and logits"],
)
def test_a_step_holds_less_by_the_logits_and_their_gradient(
    loss: Any, saved: int, place: dict[str, str], disk: Path
) -> None:
    data = batch(tokens=TOKENS, rows=1, classes=MANY)
    module = Projected(loss, classes=MANY)
    measured, planned = [], []
    for tile in ({}, {"head": 8}):
        torch._dynamo.reset()
        (folder := disk / str(len(tile))).mkdir()
        model = with_zinf(copy.deepcopy(module), folder, tile=tile, place=place, late=False)
        measured.append(step_peak(model, data))
        planned.append(zcompiler.stats(model).planned_peak["host"])
    assert measured[0] - measured[1] >= saved
    assert planned[0] - planned[1] >= saved
    assert measured[1] <= (LOGITS if loss is both else 0) + 4 * LOGITS // 8 + MANY * HIDDEN * 4 * 2
