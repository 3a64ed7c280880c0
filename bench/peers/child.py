"""The child's half, the same for every system: model and data from files, a step at a time, and what each took.

Settings (JSON): `folder` (what bench.peers.files wrote), `precision` ("fp32", or "bf16": computing in bfloat16 with
states in float32), `threads` (0 leaves it to torch), and what a system wants for itself. Commands: "load", which
answers with the number of parameters, then "step": the loss, seconds, the bytes that the process read from and wrote to
disks, and the most memory that it held over what it held before "load".

This and the systems beside it run in environments without zinf and import nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from bench.serve import serve

RATE = 1e-4
Step = Callable[[torch.Tensor], torch.Tensor]  # int64 [1, tokens] -> loss; forward, backward and update
System = Callable[[torch.nn.Module, Mapping[str, Any]], Step]


class Training:
    """Keeps the model between commands. `system` makes of the module what trains it."""

    def __init__(self, system: System, settings: Mapping[str, Any]) -> None:
        self._system, self._settings = system, settings
        if settings.get("threads"):
            torch.set_num_threads(settings["threads"])
        self._folder = Path(settings["folder"])
        self._batches = load_file(self._folder / "batches.safetensors")["batches"]
        self._done = 0

    def load(self) -> dict[str, Any]:
        self._before = _status("VmRSS")
        module = loaded(self._folder)
        module.train()
        parameters = sum(p.numel() for p in module.parameters())
        self._step = self._system(module, self._settings)
        return {"parameters": parameters}

    def step(self) -> dict[str, Any]:
        batch = self._batches[self._done % len(self._batches)]
        self._done += 1
        # Where the kernel does not let VmHWM start again, this is an error: the peak of loading would be told for it.
        Path("/proc/self/clear_refs").write_text("5")
        before = _transfers()
        start = time.perf_counter()
        loss = self._step(batch).item()
        seconds = time.perf_counter() - start
        after = _transfers()
        moved = {name: after[name] - before[name] for name in after}
        return {"loss": loss, "seconds": seconds, **moved, "peak": _status("VmHWM") - self._before}


def loaded(folder: Path) -> torch.nn.Module:
    """The model in float32 with the weights of the file, in memory of its own rather than mapped from it."""
    module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with safe_open(folder / "weights.safetensors", "pt") as file, torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(file.get_tensor(name))
    return module


def loop(model: Any, parameters: Iterable[torch.nn.Parameter], settings: Mapping[str, Any]) -> Step:
    """The plain loop of PyTorch, as its users write it."""
    optimizer = torch.optim.AdamW(parameters, lr=RATE)
    low = settings["precision"] == "bf16"

    def step(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def serve_system(system: System) -> None:
    """Answer the commands of bench.turns.Child."""

    def prepare(settings: dict[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
        training = Training(system, settings)
        return {"load": training.load, "step": training.step}

    serve(prepare)


def _status(name: str) -> int:
    """A size in /proc/self/status: bytes."""
    return _field("/proc/self/status", name) * 1024


def _transfers() -> dict[str, int]:
    """Bytes that this process has had the kernel read from disks and write to them, all threads."""
    return {"read": _field("/proc/self/io", "read_bytes"), "written": _field("/proc/self/io", "write_bytes")}


def _field(file: str, name: str) -> int:
    for line in Path(file).read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    raise OSError(f"{file} has no {name}")
