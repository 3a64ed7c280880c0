"""Calls without gradients before, between and inside steps: in inference mode, and to generate text."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompiler
from tests.cases.steps import EVERYWHERE, assert_moved, finish, same, twins
from tests.right.models import VOCABULARY, batches, built, llama
from tests.right.programs import PLAIN, Two
from tests.right.twins import ALL_ON_NVME
from tests.training.pair import Pair, Side, adamw


def step(side: Side, x: torch.Tensor = PLAIN[0]) -> dict[str, Any]:
    return finish(side, side.model(x))


@torch.inference_mode()
def infer(side: Side, x: torch.Tensor = PLAIN[1]) -> dict[str, Any]:
    return {"inferred loss": side.model(x).clone()}


def test_weights_that_are_loaded_in_inference_mode_are_used_and_train(disk: Path) -> None:
    own = twins(disk, Two(), ALL_ON_NVME)
    torch.manual_seed(8)
    others = Two().state_dict()

    @torch.inference_mode()
    def load(side: Side) -> dict[str, Any]:
        before = side.model(PLAIN[1]).clone()
        side.module.load_state_dict(others)
        after = side.model(PLAIN[1]).clone()
        assert not torch.equal(before, after)
        return {"before": before, "after": after}

    for _ in range(2):
        same(own, load)
        same(own, step)
    assert_moved(own, ALL_ON_NVME)


def test_inference_of_another_size_while_a_forward_waits_for_its_backward(disk: Path) -> None:
    own = twins(disk, Two(), ALL_ON_NVME)

    def act(side: Side) -> dict[str, Any]:
        waiting = side.model(PLAIN[0])
        made = infer(side, PLAIN[1][:3]) | infer(side)
        return made | finish(side, waiting)

    for _ in range(3):
        same(own, act)
    assert_moved(own, ALL_ON_NVME)


PROMPT = torch.randint(0, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(3))


def llama_pair(folder: Path, place: dict[str, str]) -> Pair:
    """Ours is compiled in place, so that `generate` calls the compiled form; the twin generates uncompiled."""
    module = built(llama, 1)
    twin = copy.deepcopy(module)
    module.compile(
        backend="zinf", options={"memory": "256MiB", "nvme": str(folder), "place": place, "compute": "eager"}
    )
    theirs = torch.compile(twin, backend="aot_eager")
    return Pair(Side(module, module, adamw(module.parameters())), Side(twin, theirs, adamw(twin.parameters())))


def generate(side: Side, **arguments: Any) -> dict[str, Any]:
    """Eight new tokens, greedily."""
    side.module.eval()
    arguments = {"do_sample": False, "pad_token_id": 0, "use_cache": False, **arguments}
    made = side.module.generate(PROMPT, min_new_tokens=8, max_new_tokens=8, **arguments)
    side.module.train()
    assert made.shape == (2, 5 + 8)
    return {"tokens": made}


class Decoder(torch.nn.Module):
    """One layer of causal attention over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.embed, self.mix, self.head = torch.nn.Embedding(40, 12), torch.nn.Linear(12, 36), torch.nn.Linear(12, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.embed(ids)).chunk(3, -1)
        return self.head(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


@torch.no_grad()
def greedy(call: Any) -> torch.Tensor:
    ids = PROMPT % 40
    for _ in range(8):
        ids = torch.cat([ids, call(ids)[:, -1:].argmax(-1)], 1)
    return ids


def learn(side: Side) -> dict[str, Any]:
    ids = PROMPT % 40
    return finish(side, torch.nn.functional.cross_entropy(side.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))


@EVERYWHERE
def test_tokens_chosen_between_steps_are_those_of_the_uncompiled_model(place: dict[str, str], disk: Path) -> None:
    own, graphs, texts = twins(disk, Decoder(), place, partial(torch.optim.AdamW, lr=0.1)), [], []
    for _ in range(3):
        texts.append(greedy(own.ours.model))
        assert torch.equal(texts[-1], greedy(own.theirs.module))
        same(own, learn)
        graphs.append(zcompiler.stats(own.ours.model).graphs)
    assert torch.equal(greedy(own.ours.model), greedy(own.theirs.module))
    assert zcompiler.stats(own.ours.model).graphs == graphs[1], f"graphs after each round: {graphs}"
    assert not torch.equal(texts[0], texts[2]), "training never changed the text"
    assert_moved(own, place)


MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.mark.full
def test_beams_over_padded_prompts_while_a_loss_waits_for_its_backward(disk: Path) -> None:
    own = llama_pair(disk, ALL_ON_NVME)

    def act(side: Side, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        waiting = side.forward(batch)
        return generate(side, attention_mask=MASK, num_beams=2) | finish(side, waiting)

    for batch in batches(llama, 2):
        same(own, partial(act, batch=batch))
    assert_moved(own, ALL_ON_NVME)
