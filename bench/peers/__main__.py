"""How does zinf fare beside what else trains such a model, in the same memory?

    make bench-peers
    python -m bench.peers [--model smollm2] [--precision fp32] [--only NAME ...] [--rounds 5] [--nvme /path/on/a/disk]

Eager PyTorch, torch.compile, FSDP2 with CPU offload and DeepSpeed with nvme offload, each a process in a virtual
environment of its own, train the same model on the same data in the same precision, beside zinf at the peak of the peer
`--against`, at half and at a quarter of it. docs/peers.md says how it is measured. What must hold:

    at DeepSpeed's own peak zinf is at least 2.5 times as fast as the faster DeepSpeed, at a quarter of it 1.4 times
    all losses are those of eager PyTorch, to rounding

A peer that fails has its error in the table.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.cgroup import disk_group
from bench.peers import environment, files
from bench.peers.rounds import compared
from bench.peers.systems import BY_NAME, REFERENCE, System
from bench.peers.table import SAME, answers, begin, behind, cells, headings, markdown, put
from bench.record import disk_folder, entry, parser, provenance, record, verdict
from bench.turns import ROOT, Child

PAGE = ROOT / "docs" / "peers.md"


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--model", choices=tuple(files.MODELS), default="smollm2")
    arguments.add_argument("--precision", choices=tuple(SAME), default="fp32", help="in which is computed")
    arguments.add_argument("--only", nargs="+", choices=tuple(BY_NAME), default=list(BY_NAME), help="these peers")
    arguments.add_argument("--against", choices=tuple(BY_NAME), help="whose peak zinf gets (default: deepspeed)")
    arguments.add_argument("--rounds", type=int, default=5, help="of two steps of each")
    arguments.add_argument("--layers", type=int, default=0, help="of the model only so many, to try it out; 0: all")
    arguments.add_argument("--rate", type=float, default=0, help="MB/s that may be read, and written; 0: any")
    arguments.add_argument("--docs", action="store_true", help="put the table into docs/peers.md")
    given = arguments.parse_args()
    peers = [BY_NAME[name] for name in given.only]
    against = given.against or ("deepspeed" if "deepspeed" in given.only else given.only[0])
    if against not in given.only:
        arguments.error(f"--against {against} is not among the peers of --only")
    if given.docs and given.layers:
        arguments.error("--docs is for whole models: leave out --layers")
    check((REFERENCE, *peers))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-", dir=disk_folder(given.nvme))))
        files.write(given.model, given.tokens, folder, given.layers)
        common = {"folder": str(folder), "precision": given.precision, "threads": given.threads}
        group = throttled(folder, given.rate, stack) if given.rate else None
        rows = compared(partial(launch, folder, common, group), REFERENCE, peers, against, given.rounds)
    part = f"{given.layers} layers of " if given.layers else ""
    disk = f", the disk held to {given.rate:g} MB/s each way" if given.rate else ""
    title = f"{part}{given.model}, {given.tokens} tokens, {given.precision}{disk}, {given.rounds} rounds"
    for row in rows:
        record("peers", summary=title, **{**asdict(row), "share": row.share and float(row.share)})
    found = answers(rows, against, given.precision)
    holds = [verdict("peers", a.question, a.measured, at_least=a.at_least, at_most=a.at_most) for a in found]
    if given.docs:
        text = markdown(rows, against, provenance(), title, found)
        PAGE.write_text(put(PAGE.read_text(), begin(given.model, given.precision, given.rate), text))
    console = Console()
    table = Table(title=title)
    for heading in headings(against):
        table.add_column(heading, overflow="fold")
    of = {row.name: row for row in rows}[against]
    for row in rows:
        table.add_row(*map(escape, cells(row, rows[0], of)))
    console.print(table)
    for sentence in behind(rows):
        console.print(sentence, soft_wrap=True)
    for answer, good in zip(found, holds, strict=True):
        asked = [f"at least {answer.at_least}"] if answer.at_least is not None else []
        asked += [f"at most {answer.at_most}"] if answer.at_most is not None else []
        said = "[green]yes[/green]" if good else "[red]no [/red]"
        console.print(f"{said if asked else '   '} {answer.question}: {answer.measured:.3g}", *asked, soft_wrap=True)
    return all(holds)


def check(systems: tuple[System, ...]) -> None:
    """Unavailable, before anything is measured, when an environment or what a peer compiles with is not there."""
    names = {system.environment for system in systems if system.environment}
    for name in sorted(names):
        environment.python(name)
    if "deepspeed" in names:
        environment.need_deepspeeds_own()


def throttled(folder: Path, rate: float, stack: ExitStack) -> Path:
    """A control group whose processes read and write `rate` MB/s at most, as long as `stack` is open. One for all: they
    take turns."""
    group = stack.enter_context(disk_group("peers"))
    group.throttle(folder, "read", "write", rate=int(rate * 1e6))
    return group.path


def launch(folder: Path, common: dict[str, Any], group: Path | None, system: System, limit: int | None) -> Child:
    """A system's process, with a folder on the disk of its own below `folder`."""
    interpreter = environment.python(system.environment) if system.environment else Path(sys.executable)
    own = tempfile.mkdtemp(dir=folder)
    settings = {**common, **system.settings, "nvme": own}
    if limit is not None:
        settings["options"] = {"memory": limit, "nvme": own}
    variables = environment.variables(interpreter)
    return Child(system.name, system.module, settings, group=group, python=interpreter, environ=variables)


if __name__ == "__main__":
    entry(main)
