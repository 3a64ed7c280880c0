"""`generate` of transformers between training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import zcompiler
from tests.around.in_place import zinf
from tests.right.models import VOCABULARY, batches, built, llama
from tests.right.twins import assert_equal, assert_on_nvme

PROMPT = torch.arange(2 * 4).reshape(2, 4) % VOCABULARY
NEW = 6


def written(model: Any) -> torch.Tensor:
    """The prompt and what the model makes of it, greedily, with a cache."""
    model.eval()
    mask = torch.ones_like(PROMPT)
    tokens = model.generate(PROMPT, attention_mask=mask, max_new_tokens=NEW, do_sample=False, use_cache=True)
    model.train()
    return tokens


def test_a_model_generates_between_steps_with_a_fixed_number_of_graphs(disk: Path) -> None:
    """Through zinf, with a cache that grows, what the twin in memory writes uncompiled."""
    ours, theirs = zinf(built(llama, 1), disk), built(llama, 1)
    pairs = [(m, torch.optim.AdamW(m.parameters(), lr=1e-2)) for m in (ours, theirs)]
    calls = ours, torch.compile(theirs, backend="aot_eager")
    tokens, graphs = [], []
    for batch in batches(llama, 3):
        for call, (_, optimizer) in zip(calls, pairs, strict=True):
            call(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        tokens.append(written(ours))
        assert torch.equal(tokens[-1], written(theirs))
        graphs.append(zcompiler.stats(ours).graphs)
    assert_equal(dict(ours.named_parameters()), dict(theirs.named_parameters()), "weight")
    assert_on_nvme(ours, "param", "state")
    assert tokens[0].shape == (2, 4 + NEW)
    assert any(not torch.equal(tokens[0], later) for later in tokens[1:]), "the weights made no difference"
    assert graphs[0] > 1, "generating made no graph"
    assert graphs[2] == graphs[1]
