"""Tiny models of the kinds people train, with random weights, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Make = Callable[..., torch.nn.Module]

VOCABULARY = 96


class Mlp(torch.nn.Module):
    """Layers of odd sizes with dropout; forward gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(7, 13), torch.nn.Linear(13, 13), torch.nn.Linear(13, 5)])
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(torch.nn.functional.gelu(layer(x)))
        return torch.nn.functional.mse_loss(self.layers[-1](x), labels)


def mlp() -> torch.nn.Module:
    return Mlp()


def llama(layers: int = 2) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False,
        attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def bert() -> torch.nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=56,
        max_position_embeddings=64,
    )  # fmt: skip
    return BertForMaskedLM(config)


def built(make: Make, *args: Any) -> torch.nn.Module:
    """A model in training mode whose weights are the same each time."""
    torch.manual_seed(1234)
    return make(*args).train()


def batches(make: Make, count: int) -> list[dict[str, torch.Tensor]]:
    """Batches that suit the model that `make` builds, the same each time."""
    generator = torch.Generator().manual_seed(99)
    if make is mlp:
        sizes = {"x": (6, 7), "labels": (6, 5)}
        return [{k: torch.randn(s, generator=generator) for k, s in sizes.items()} for _ in range(count)]
    ids = [torch.randint(0, VOCABULARY, (2, 12), generator=generator) for _ in range(count)]
    return [{"input_ids": i, "labels": i} for i in ids]
