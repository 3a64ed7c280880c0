"""The zoo: models of known widths cut to a few layers, and the limits each is described at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

LAYERS = 4  # a first, a last, and two equal ones between: what holds for these holds for eighty
TOKENS = 512
IMAGES = 8
ACTIVATIONS = "nvme"  # of the smallest limit: all that can leave memory does


@dataclass(frozen=True, slots=True)
class Limit:
    """One way to describe a model. `memory` and `activations` are the options of zinf."""

    name: str
    memory: str
    activations: str = "keep"


@dataclass(frozen=True, slots=True)
class Kind:
    """One model. `build` makes it without weights, and a batch for it; its loss is its own `.loss`. `update`: whether
    the schedule of the optimizer step is looked at, which at the largest width has twenty thousand ops."""

    name: str
    build: Callable[[], tuple[torch.nn.Module, Mapping[str, torch.Tensor]]]
    limits: tuple[Limit, ...]
    update: bool = True


def limits(everything: str, middle: str, least: str) -> tuple[Limit, ...]:
    """Where all fits, where some must move, and hardly above what is refused."""
    return Limit("all", everything), Limit("middle", middle), Limit("least", least, ACTIVATIONS)


def on_tokens(
    name: str, its: tuple[Limit, ...], class_name: str, config_name: str, *, update: bool = True, **settings: Any
) -> Kind:
    """A model of transformers that takes one row of TOKENS token ids."""

    def build() -> tuple[torch.nn.Module, Mapping[str, torch.Tensor]]:
        import transformers

        config = getattr(transformers, config_name)(**settings)
        with torch.device("meta"):
            model = getattr(transformers, class_name)(config)
        if model.loss_type is None:
            # Else transformers warns of it within forward, where it breaks the graph.
            model.loss_type = "ForCausalLM"
        ids = torch.zeros(1, TOKENS, dtype=torch.int64)
        return model.train(), {"input_ids": ids, "labels": ids}

    return Kind(name, build, its, update)


def llama(
    name: str, its: tuple[Limit, ...], width: int, inner: int, heads: int, shared: int, *, update: bool = True
) -> Kind:
    """A Llama 3 of LAYERS layers; `shared`: heads of keys and values."""
    return on_tokens(
        name,
        its,
        "LlamaForCausalLM",
        "LlamaConfig",
        update=update,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        num_hidden_layers=LAYERS,
        vocab_size=128256,
        use_cache=False,
    )


def _vit() -> tuple[torch.nn.Module, Mapping[str, torch.Tensor]]:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=LAYERS, num_labels=1000
    )
    with torch.device("meta"):
        model = transformers.ViTForImageClassification(config)
    images, labels = torch.zeros(IMAGES, 3, 224, 224), torch.zeros(IMAGES, dtype=torch.int64)
    return model.train(), {"pixel_values": images, "labels": labels}


ZOO: tuple[Kind, ...] = (
    llama("llama-8b", limits("32GiB", "20GiB", "7936MiB"), 4096, 14336, 32, 8),
    llama("llama-70b", limits("96GiB", "40GiB", "17408MiB"), 8192, 28672, 64, 8, update=False),
    on_tokens(
        "gpt2-xl",
        limits("4GiB", "2560MiB", "1520MiB"),
        "GPT2LMHeadModel",
        "GPT2Config",
        n_embd=1600,
        n_head=25,
        n_layer=LAYERS,
        use_cache=False,
    ),
    on_tokens(
        "bert-large",
        limits("2GiB", "1GiB", "624MiB"),
        "BertForMaskedLM",
        "BertConfig",
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=16,
        num_hidden_layers=LAYERS,
    ),
    Kind("vit-l", _vit, limits("1280MiB", "768MiB", "360MiB")),
)
