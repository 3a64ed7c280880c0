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


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width, bias=False)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


class Decoder(torch.nn.Module):
    """A language model with tied embeddings; forward gives the loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 32)
        self.layers = torch.nn.ModuleList([Block(32, 4) for _ in range(layers)])
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = torch.nn.functional.linear(self.norm(x), self.embed.weight)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def decoder(layers: int = 2) -> torch.nn.Module:
    """Much quicker to trace than a model of transformers."""
    return Decoder(layers)


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
