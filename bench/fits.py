"""Does training fit where it could not before? The kernel is the judge: what takes more than its limit is killed.

    python -m bench.fits [--memory 1.25GiB] [--tokens 512] [--steps 6] [--nvme /path/on/a/disk]

Three processes, one after the other, train the demo's model in the same way, each in a memory cgroup of its own:
plain PyTorch without a limit (a control: it does finish, and takes so much), zinf under the limit, and plain PyTorch
under the same limit, which must end by SIGKILL with the kill counted by the cgroup.

What makes it honest:
- The limit is what zinf promises: what the process held before the model was loaded, 1.1 times `memory`, and 200 MiB
  for the run time. The control takes more, so that the limit, and not some other fault, parts the two.
- Each process is in its cgroup from its first instruction, so that all it holds is counted, model, optimizer states
  and what the compiler left behind included; memory from before a move into a cgroup would stay uncounted.
- The limit comes down after the first step, which compiles: what compiling takes for a moment is not judged here. On
  cgroup v1 a limit below what is held already is refused; plain PyTorch then gets the least limit that is accepted,
  more than zinf had, and must fail even so.
- No swap, and zinf reads and writes by direct I/O: nothing rests in the page cache, which the limit counts too.
- The losses of zinf must be those of the control, so that the same training was done.

Peaks are of anonymous memory, sampled every 5 ms: `second` in the second step, `peak` from the third on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from signal import SIGKILL
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cgroup import MemoryGroup, memory_group
from bench.record import disk_folder, entry, parser, record, verdict
from bench.turns import Child, Ended
from zcompiler.cli.demo_report import allowed_peak, gib, loss_gap
from zcompiler.errors import ZinfError
from zcompiler.options import parse_options

SAMPLE = 0.005  # seconds
SMALL = {"width": 1024, "depth": 24}  # of the mlp: 25.2 M parameters, 96 MiB
SAME = 1e-4  # relative: sums in another order, after a few steps of AdamW


@dataclass(slots=True)
class Trial:
    """How one process fared. Bytes; `limit` is None for no limit, `status` 0 for one that did all steps."""

    name: str
    base: int = 0
    after_first: int = 0
    limit: int | None = None
    second: int = 0
    peak: int = 0
    losses: list[float] = field(default_factory=list)
    status: int = 0
    kills: int = 0

    @property
    def killed(self) -> bool:
        return self.status == -SIGKILL and self.kills > 0


def trial(name: str, settings: Mapping[str, Any], steps: int, limit: int | None = None) -> Trial:
    """Train for some steps, at least 3, in a process of its own; `limit` is in bytes, the process itself included."""
    result = Trial(name)
    with memory_group(name) as group, Child(name, "bench.trainer", settings, group=group.path) as child:
        result.base = group.held()
        child.ask("load")
        result.losses.append(child.ask("step")["loss"])
        result.after_first = group.held()
        try:
            if limit is not None:
                result.limit = group.limit(limit)
            with peak(group) as second:
                result.losses.append(child.ask("step")["loss"])
            with peak(group) as later:
                for _ in range(steps - 2):
                    result.losses.append(child.ask("step")["loss"])
            result.second, result.peak = max(second), max(later)
        except Ended as ended:
            if ended.status != -SIGKILL:
                raise
            result.status = ended.status
        result.kills = group.kills()
    return result


@contextmanager
def peak(group: MemoryGroup) -> Iterator[list[int]]:
    """Samples of what the group holds while the block runs; complete when it is left."""
    samples: list[int] = []
    over = threading.Event()

    def sample() -> None:
        samples.append(group.held())
        while not over.wait(SAMPLE):
            samples.append(group.held())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def compare(model: str, tokens: int, steps: int, threads: int, options: Mapping[str, Any]) -> list[Trial]:
    """The three trials: control, zinf, plain. Each is recorded as it ends. `options` are zinf's.

    Unavailable where there can be no cgroup, ZinfError when the control takes no more than zinf promises to.
    """
    settings = {"model": model, "tokens": tokens, "threads": threads, "options": dict(options), **SMALL}
    memory = parse_options(options, environ={}).memory

    def recorded(name: str, side: str, limit: int | None) -> Trial:
        done = trial(name, {**settings, "side": side}, steps, limit)
        record("fits", model=model, tokens=tokens, memory=memory, **asdict(done))
        return done

    control = recorded("control", "plain", None)
    promise = control.base + allowed_peak(memory)
    if control.peak <= promise:
        raise ZinfError(
            f"plain PyTorch took {gib(control.peak)} at most and zinf may take {gib(promise)}: no limit parts them; "
            "lower --memory"
        )
    return [control, recorded("zinf", "zinf", promise), recorded("plain", "plain", promise)]


def shown(control: Trial, zinf: Trial, plain: Trial) -> dict[str, bool]:
    """What must hold, in words, and whether it does."""
    assert zinf.limit is not None
    gap = loss_gap(control.losses, zinf.losses) if len(zinf.losses) == len(control.losses) else math.inf
    return {
        "the control finished and took more than the limit": control.status == 0 and control.peak > zinf.limit,
        "zinf finished within it, and nothing was killed": zinf.status == 0 and zinf.kills == 0,
        f"its losses are the control's, to {SAME:g}": gap <= SAME,
        "plain PyTorch was killed by the kernel": plain.killed,
    }


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--memory", default="1.25GiB", help="zinf's option")
    arguments.add_argument("--steps", type=int, default=6, help="at least 3")
    arguments.add_argument("--model", choices=("smollm2", "mlp"), default="smollm2")
    given = arguments.parse_args()
    options = {"memory": given.memory, "nvme": disk_folder(given.nvme)}
    trials = compare(given.model, given.tokens, given.steps, given.threads, options)

    table = Table(title=f"{given.model}, {given.tokens} tokens, {given.steps} steps, memory={given.memory}")
    for heading in ("GiB", "base", "after step 1", "second", "peak", "limit", "steps", "end"):
        table.add_column(heading, justify="right")
    for t in trials:
        end = "killed" if t.killed else "done" if t.status == 0 else f"signal {-t.status}"
        sizes = (f"{n / 2**30:.3f}" if n else "-" for n in (t.base, t.after_first, t.second, t.peak, t.limit))
        table.add_row(t.name, *sizes, str(len(t.losses)), end)
    console = Console()
    console.print(table)
    control, zinf, _ = trials
    if zinf.peak:
        took, promise = zinf.peak - zinf.base, allowed_peak(parse_options(options, environ={}).memory)
        console.print(f"zinf took {gib(took)} over its base; its promise is {gib(promise)}")
        verdict("fits", "memory that it takes, over what it may", took / promise)
    sentences = shown(*trials)
    for sentence, holds in sentences.items():
        console.print(f"{'[green]yes[/green]' if holds else '[red]no [/red]'} {sentence}")
    assert zinf.limit is not None
    question = "a limit under which it trains and plain PyTorch is killed, over what plain PyTorch takes"
    return verdict("fits", question, zinf.limit / control.peak, at_most=1, also=all(sentences.values()))


if __name__ == "__main__":
    entry(main)
