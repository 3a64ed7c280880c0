"""A target that is really trained, by zinf and by stock torch.compile in turns: what its steps take and hold."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

import zcompiler
from zcompiler.cli.dump.config import DTYPES
from zcompiler.cli.dump.target import Wanted, load
from zcompiler.compare.metrics import THOUSAND
from zcompiler.describe.build import with_bytes
from zcompiler.describe.describe import arguments_of, loss_of
from zcompiler.lower.regions import usable_compute
from zcompiler.options import parse_options

STEP, PEAK = "step, over one in memory", "peak, over the planned one"
WARM = 3  # steps that compile, make the optimizer's states, and leave the first update for later
ROUNDS = 10
IN_A_ROW = 2  # what a late update leaves over is paid by the step after it


def measured(wanted: Wanted, options: Mapping[str, Any], *, autocast: str | None = None) -> dict[str, int]:
    """Ratios, in thousandths: a step of zinf over one of torch.compile with all in memory, the median of rounds in
    which they take turns; and the most that a step of zinf held, as its runtime counts, over what was planned.

    Both models are made for real, with equal weights, so there has to be memory for the second. With `wanted.train`
    false a step is a forward. Raises as `load` does, and whatever a step raises.
    """
    chosen = parse_options(options, environ=os.environ)
    stock = "inductor" if usable_compute(chosen.compute, []) == "inductor" else "aot_eager"
    zinf = _Trained(wanted, autocast, chosen.optimizer, backend="zinf", options=dict(options))
    memory = _Trained(wanted, autocast, chosen.optimizer, backend=stock)
    for side in (zinf, memory):
        for _ in range(WARM):
            side.step()
    ratios = []
    for number in range(ROUNDS):
        order = (zinf, memory) if number % 2 else (memory, zinf)
        seconds = {side: side.seconds() for side in order}
        ratios.append(seconds[zinf] / seconds[memory])
    stats = zcompiler.stats(zinf.model)
    found = {STEP: round(statistics.median(ratios) * THOUSAND)}
    for tier, planned in stats.planned_peak.items():
        if planned and tier in stats.peak:
            found[PEAK] = round(stats.peak[tier] / planned * THOUSAND)
    return found


class _Trained:
    """One model with its optimizer, compiled as `compiled` says."""

    def __init__(self, wanted: Wanted, autocast: str | None, optimizer: str, **compiled: Any) -> None:
        torch.manual_seed(0)
        target = load(wanted, with_bytes)
        self.model: Any = torch.compile(target.model, **compiled)
        self._args, self._kwargs = arguments_of(target.inputs)
        self._loss, self._train = target.loss, wanted.train
        self._autocast = autocast
        make = target.optimizer or getattr(torch.optim, optimizer)
        self._optimizer = make(target.model.parameters()) if wanted.train else None

    def step(self) -> None:
        with torch.set_grad_enabled(self._train):
            with torch.autocast("cpu", DTYPES[self._autocast]) if self._autocast else nullcontext():
                out = self.model(*self._args, **self._kwargs)
                loss = loss_of(out, self._loss) if self._train else None
            if loss is not None and self._optimizer is not None:
                loss.backward()
                self._optimizer.step()
                self._optimizer.zero_grad()

    def seconds(self) -> float:
        """Of some steps in a row."""
        start = time.perf_counter()
        for _ in range(IN_A_ROW):
            self.step()
        return time.perf_counter() - start
