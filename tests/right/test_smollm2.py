"""A real model and real text; minutes long, so left out unless asked for."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.right.twins import ON_NVME, assert_equal, assert_on_nvme, gradients, stock, with_zinf
from zcompiler.cli.demo_child import model_file, token_batches

pytestmark = pytest.mark.full

TOKENS = 64


@pytest.fixture(scope="module")
def smollm2() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    file = model_file()
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).train()


def text(steps: int) -> list[torch.Tensor]:
    from transformers import AutoTokenizer

    file = model_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return list(itertools.islice(token_batches(tokenizer, TOKENS), steps))


def test_three_steps_from_nvme_are_bit_for_bit_those_in_memory(smollm2: torch.nn.Module, disk: Path) -> None:
    plain = stock(smollm2)
    model = with_zinf(copy.deepcopy(smollm2), disk, memory="2GiB", place=ON_NVME)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (plain, model)]
    for step, ids in enumerate(text(3)):
        theirs, ours = (m(input_ids=ids, labels=ids).loss for m in (plain, model))
        assert torch.equal(ours, theirs), f"loss of step {step}: {ours.item()!r} instead of {theirs.item()!r}"
        for loss in (theirs, ours):
            loss.backward()
        assert_equal(gradients(model), gradients(plain), f"gradient in step {step} of")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(dict(model.named_parameters()), dict(plain.named_parameters()), "weight")
    assert_on_nvme(model, "param", "state")


def test_losses_through_inductor_are_those_of_plain_pytorch_for_eight_steps(
    smollm2: torch.nn.Module, disk: Path
) -> None:
    plain = copy.deepcopy(smollm2)
    model = with_zinf(copy.deepcopy(smollm2), disk, memory="2GiB", compute="inductor")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (plain, model)]
    for step, ids in enumerate(text(8)):
        theirs, ours = (m(input_ids=ids, labels=ids).loss for m in (plain, model))
        off = abs(ours.item() / theirs.item() - 1)
        assert off < 1e-5, f"loss of step {step}: {ours.item()!r} instead of {theirs.item()!r}, {off:.1e} off"
        for loss, optimizer in zip((theirs, ours), optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_on_nvme(model, "param", "state")
    assert zcompiler.stats(model).regions_compiled <= 12
