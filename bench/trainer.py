"""One way to train, in a process of its own, one command at a time: "load", then "step" or "passes" as often as wanted.

    python -m bench.trainer '{"side": "zinf", "model": "smollm2", "tokens": 512, "options": {"memory": "1.25GiB"}}'

`side` is plain, inductor or zinf (with its `options`); `model` smollm2 (what the demo trains, in the same way) or mlp
(`depth` equal layers of `width`, `tokens` rows). With `read_rate` and `write_rate`, zinf's transfers take as long
as at that many bytes a second. "predict" tells what a step would cost on the machine in the file `machine`.
A step is forward, backward and optimizer; "passes" leaves the optimizer out; "plan" tells what was planned. The first
two answer with the loss, with the most memory that the process held over what it held before "load" (`peak`, bytes;
null where the kernel does not tell), and with each phase apart: seconds, and for zinf, from the second on, bytes on
nvme by kind and hidden and exposed seconds by lane. "ends" tells between which limits, from 256 MiB on, a choice makes
a difference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.serve import serve
from bench.slow_disk import SlowTransfers
from runtime_ext.nvme import NvmeStore, Syscalls
from zcompiler.cli.demo_child import RATE, model_file, token_batches
from zcompiler.cli.measure import peak_rss, reset_peak_rss, rss
from zcompiler.errors import DoesNotFit
from zcompiler.free_memory import anonymous_memory
from zcompiler.schedule.model import Schedule
from zcompiler.training import session

SMALL_LIMIT = 256 << 20
STEADY = 4  # simulated steps, so that what one leaves over to the next is in it
Counters = dict[str, dict[str, float]]
Loss = Callable[[Any], torch.Tensor]  # of what a model returns
Kind = tuple[Callable[[], torch.nn.Module], Iterator[torch.Tensor], Callable[[torch.Tensor], Any], Loss]


class Trainer:
    """Keeps the model between commands. Everything but the model itself is there when it is constructed."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        if settings.get("threads"):
            torch.set_num_threads(settings["threads"])
        calls = {
            name: SlowTransfers(getattr(os, name), settings[rate])
            for name, rate in (("preadv", "read_rate"), ("pwritev", "write_rate"))
            if settings.get(rate)
        }
        if calls:
            # The store is made inside torch.compile, where a slower disk cannot be handed in.
            session.NvmeStore = partial(NvmeStore, calls=Syscalls(**calls))  # type: ignore[misc, assignment, arg-type]
        kind = MODELS[settings["model"]]
        self._build, self._batches, self._inputs, self._loss = kind(settings)
        self._ran = False

    def load(self) -> dict[str, Any]:
        self._before, self._own = rss(), anonymous_memory() or 0
        module = self._build()
        module.train()
        side = self.settings["side"]
        self.model: Any = module
        if side == "inductor":
            self.model = torch.compile(module)
        elif side == "zinf":
            self.model = torch.compile(module, backend="zinf", options=self.settings["options"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        return {"parameters": sum(p.numel() for p in module.parameters())}

    def step(self) -> dict[str, Any]:
        return self._run(update=True)

    def passes(self) -> dict[str, Any]:
        return self._run(update=False)

    def plan(self) -> dict[str, Any]:
        """What zinf's planner decided for the graph of training: its words, and bytes: the smallest limit that would
        do, what a step is to hold, and activations that forward leaves to backward."""
        plans = session.session_for(self.settings["options"]).plans
        least = max(plan.least for plan in plans.values())
        most = max(plan.peak["host"] for plan in plans.values())
        saved = sum(plan.saved for plan in plans.values())
        return {
            "least": least,
            "most": most,
            "activations": saved,
            "reasons": [line for plan in plans.values() for line in plan.reasons],
        }

    def predict(self) -> dict[str, Any]:
        """What the next step costs on the machine in the file `machine`: what zinf's simulator says, and what the
        optimizer takes for what it updates where it is. `others`: what the process has come to hold since "load" that
        no plan counts, above all what compiling leaves behind; bytes, as seen after the last step."""
        from zcompiler.machine.file import read_machine
        from zcompiler.plan.price import step_timeline
        from zcompiler.training.predicted import Known, predicted

        machine = read_machine(Path(self.settings["machine"]))
        here = session.session_for(self.settings["options"])
        update = here.schedules.get("update")
        streamed = sum(v.nbytes for v in update.values if v.kind == "param") if update is not None else 0
        in_place = machine.update_seconds(sum(p.nbytes for p in self.model.parameters()) - streamed)
        if update is not None:
            known, steps = Known.of(here), STEADY
            try:
                found = predicted(known, machine, steps=steps)
            except MemoryError:  # at some limits the simulator cannot go where the runtime can; `peak` says so
                free = {name: _without_budgets(schedule) for name, schedule in known.schedules.items()}
                found = predicted(replace(known, schedules=free), machine, steps=steps)
            last = [seconds for _, seconds in found.phases()][-3:]
            seconds = dict(zip(("forward", "backward", "optimizer"), last, strict=True))
            seconds["optimizer"] += in_place
        else:
            ((name, schedule),) = here.schedules.items()
            found, steps = step_timeline(schedule, here.works[name], None, False, machine), 1
            seconds = {"forward and backward": found.seconds, "optimizer": in_place}
        return {
            "seconds": seconds,
            "exposed": {lane: waited / steps for lane, waited in found.exposed.items()},
            "moved": {lane: size / steps for lane, size in found.moved.items()},
            "peak": found.peak["host"],
            "others": None if (others := here.stats().others) is None else others - self._own,
        }

    def ends(self) -> dict[str, Any]:
        """Bytes: the smallest limit that some placement stays inside, and what a step holds when nothing moves."""
        import zcompiler
        from zcompiler.schedule.memory import peak

        inputs = self._inputs(next(self._batches))
        found = zcompiler.schedule(self.model, inputs, options={"memory": 1 << 50}, update=False)
        most = max(peak(graph.final)["host"][0] for graph in found.graphs)
        try:  # with a limit that tiles are tried for
            least = min(SMALL_LIMIT, most // 4)
            zcompiler.schedule(self.model, inputs, options={"memory": least}, update=False)
        except DoesNotFit as refusal:
            least = refusal.least
        return {"least": least, "most": most}

    def _run(self, update: bool) -> dict[str, Any]:
        inputs = self._inputs(next(self._batches))
        returned: list[Any] = []  # held to the end of the step, as in most people's loops
        counted = reset_peak_rss()
        phases = {"forward": self._phase(lambda: returned.append(self._call(inputs)))}
        loss = self._loss(returned[0])
        phases["backward"] = self._phase(loss.backward)
        if update:
            phases["optimizer"] = self._phase(self.optimizer.step)
        self.optimizer.zero_grad()
        self._ran = True
        most = peak_rss() - self._before if counted else None
        return {"loss": loss.item(), "peak": most, "phases": phases}

    def _call(self, inputs: Any) -> Any:
        return self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)

    def _phase(self, work: Callable[[], Any]) -> dict[str, Any]:
        before = self._counters()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        if not before:
            return {"seconds": seconds}
        after = self._counters()
        changes = {name: {k: n - before[name].get(k, 0) for k, n in kinds.items()} for name, kinds in after.items()}
        return {"seconds": seconds, **changes}

    def _counters(self) -> Counters:
        if self.settings["side"] != "zinf" or not self._ran:
            return {}
        import zcompiler

        stats = zcompiler.stats(self.model)
        return {
            "read": dict(stats.read.get("nvme", {})),
            "written": dict(stats.written.get("nvme", {})),
            "hidden": dict(stats.hidden),
            "exposed": dict(stats.exposed),
        }


def _without_budgets(schedule: Schedule) -> Schedule:
    return replace(schedule, tiers=tuple(replace(tier, budget=None) for tier in schedule.tiers))


def _smollm2(settings: Mapping[str, Any]) -> Kind:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = model_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)

    def build() -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)

    def inputs(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"input_ids": ids, "labels": ids}

    return build, token_batches(tokenizer, settings["tokens"]), inputs, lambda returned: returned.loss


def _mlp(settings: Mapping[str, Any]) -> Kind:
    rows, width, depth = (settings[key] for key in ("tokens", "width", "depth"))

    def build() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = [m for _ in range(depth) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())]
        return torch.nn.Sequential(*layers)

    def batches() -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        while True:
            yield torch.randn(rows, width, generator=generator)

    return build, batches(), lambda x: x, lambda returned: returned.square().mean()


MODELS: Mapping[str, Callable[[Mapping[str, Any]], Kind]] = {"smollm2": _smollm2, "mlp": _mlp}


def _prepare(settings: dict[str, Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    trainer = Trainer(settings)
    names = ("load", "step", "passes", "plan", "predict", "ends")
    return {name: getattr(trainer, name) for name in names}


if __name__ == "__main__":
    serve(_prepare)
