"""How wide a layer trains where memory is in pieces? One layer (h -> 4h -> h), in 1, 2, 4 and 16 tiles.

    python -m bench.tiling [--piece 32] [--nvme /path/on/a/disk]

The managed memory is cut beforehand into pieces of `piece` MiB, and an allocation that is longer fails, as after a
long run on a fragmented device. A weight has 16 h^2 bytes, of which only a tile has to be in one piece: the widest
layer that trains must grow with the square root of the number of tiles, within 10 %. A width trains if a step of AdamW
goes through with the loss and the gradients that the untiled layer has in ordinary memory.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record, verdict
from runtime_ext.host import HostArena
from runtime_ext.host.arena import PAGE, HostBuffer
from zcompiler.training.session import session_for

FACTORS = (1, 2, 4, 16)
WITHIN = 0.10


class SplitArena(HostArena):
    """Managed memory in pieces of `piece` bytes, with something in use between any two of them."""

    def __init__(self, tier: str, piece: int, count: int) -> None:
        super().__init__(tier, count * (piece + PAGE))
        free = []
        for _ in range(count):
            free.append(super().alloc(piece))
            super().alloc(PAGE)
        for buffer in free:
            buffer.free()

    def alloc(self, nbytes: int, overflow: bool = False) -> HostBuffer:
        """MemoryError for what is longer than a piece; nothing is found elsewhere."""
        return super().alloc(nbytes)


class Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(torch.relu(self.up(x)))).square().mean()


def trains(width: int, factor: int, piece: int, options: Mapping[str, Any]) -> bool:
    """Whether a step of a layer of this width, in `factor` tiles, goes through with pieces of `piece` bytes. Raises
    AssertionError if it does and computes something else than the whole layer."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, x = Layer(width), torch.randn(4, width)
    chosen = {"place": dict.fromkeys(("params", "grads", "optimizer"), "nvme"), "tile": {"*": factor}, **options}
    session = session_for(chosen)  # held, so that the model gets this one
    tier = session.compute_tier
    session.runtime.arenas = {tier: SplitArena(tier, piece, session.options.memory // piece)}
    expected = layer(x)
    expected.backward()
    norms = [p.grad.norm() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    model = torch.compile(layer, backend="zinf", options=chosen)
    optimizer = torch.optim.AdamW(layer.parameters())
    try:
        loss = model(x)
        loss.backward()
        got = [p.grad.norm() for p in layer.parameters() if p.grad is not None]
        optimizer.step()
        model(x)
    except MemoryError:
        return False
    torch.testing.assert_close([loss.detach(), *got], [expected.detach(), *norms], rtol=1e-5, atol=0)
    return True


def widest(factor: int, piece: int, options: Mapping[str, Any], step: int) -> int:
    """The widest multiple of `step` that trains, found by halving."""
    low, high = step, 2 * step
    while trains(high, factor, piece, options):
        low, high = high, 2 * high
    while high - low > max(step, low // 32):
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if trains(middle, factor, piece, options) else (low, middle)
    return low


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--piece", type=int, default=32, help="MiB in one piece; the update takes 32 at a time")
    given = arguments.parse_args()
    piece = given.piece << 20
    found: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=disk_folder(given.nvme)))
        options = {"memory": 64 * piece, "nvme": folder, "compute": "eager", "late": False, "prefetch": 0}
        for factor in FACTORS:
            found[factor] = widest(factor, piece, options, 128)
            record("tiling", piece=piece, factor=factor, width=found[factor], weight=16 * found[factor] ** 2)
    table = Table(title=f"h -> 4h -> h, AdamW, memory in pieces of {given.piece} MiB")
    for heading in ("tiles", "widest h that trains", "times one tile's", "wanted"):
        table.add_column(heading, justify="right")
    ratios = {factor: width / found[1] for factor, width in found.items()}
    for factor, width in found.items():
        table.add_row(str(factor), str(width), f"{ratios[factor]:.2f}", f"{math.sqrt(factor):.2f}")
    holds = True
    for factor in FACTORS[1:]:
        root = math.sqrt(factor)
        bounds = {"at_least": (1 - WITHIN) * root, "at_most": (1 + WITHIN) * root}
        question = f"widest layer in {factor} tiles, over that in one"
        holds = verdict("tiling", question, ratios[factor], **bounds) and holds
    console = Console()
    console.print(table)
    console.print(f"{'[green]yes[/green]' if holds else '[red]no [/red]'} it grows with the root, within {WITHIN:.0%}")
    return holds


if __name__ == "__main__":
    entry(main)
