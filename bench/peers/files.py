"""Model and data as files, so that every system loads the same whatever its environment has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from zcompiler.cli.demo_child import model_file, token_batches

BATCHES = 32  # then from the start again
LLAMA = {"hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 4096, "vocab_size": 32000}


def write(model: str, tokens: int, folder: Path, layers: int = 0) -> None:
    """Put `config.json`, `weights.safetensors` (float32, a tied weight once) and `batches.safetensors` (int64
    [batches, 1, tokens]) into `folder`. `layers`: the model has only its first ones; 0: it is whole."""
    module, batches = MODELS[model](tokens)
    if layers:
        module.model.layers = module.model.layers[:layers]
        module.config.num_hidden_layers = layers
    module.config.save_pretrained(folder)
    save_file({name: p.detach() for name, p in module.named_parameters()}, folder / "weights.safetensors")
    save_file({"batches": batches.contiguous()}, folder / "batches.safetensors")


def _smollm2(tokens: int) -> tuple[Any, torch.Tensor]:
    """What the demo trains, on what it trains it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = model_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    batches = torch.stack(list(islice(token_batches(tokenizer, tokens), BATCHES)))
    module = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del module.config.quantization_config  # of the file that these weights come from; they are float32 now
    return module, batches


def _llama(tokens: int) -> tuple[Any, torch.Tensor]:
    """334 M parameters and tokens, both at random."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    module = LlamaForCausalLM(LlamaConfig(**LLAMA, num_attention_heads=16, tie_word_embeddings=False))
    return module, torch.randint(0, LLAMA["vocab_size"], (BATCHES, 1, tokens))


MODELS: Mapping[str, Callable[[int], tuple[Any, torch.Tensor]]] = {
    "smollm2": _smollm2,
    "llama334m": _llama,
}
