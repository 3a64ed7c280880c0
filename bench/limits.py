"""Is memory that is given also used? The bytes that a step moves at several limits, against the least that each allows.

    python -m bench.limits [--limits 512MiB 768MiB 1GiB 1536MiB 2GiB] [--tokens 512] [--nvme /path/on/a/disk]

Nothing is forced: zinf places each unit as its planner sees fit. The counted bytes of steady steps are compared with
what the best placement would move with the same room. In fp32 with AdamW a step moves 28 B for each parameter (weight
and two states read and written once, the weight once more for backward; forward is handed what the update made), and 8
for its gradient where that rests on nvme. Holding saves 12 B for a weight, 8 for a gradient, 8 for each state, at 4 B
of room each; the room is what the limit leaves beside what a step holds when everything moves. What must hold at each
limit: at most 1.1 times that.
"""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.record import disk_folder, entry, parser, record, verdict
from bench.turns import Child
from zcompiler.schedule.sizes import parse_bytes

LIMITS = ("512MiB", "768MiB", "1GiB", "1536MiB", "2GiB")
SURPLUS = 1.1
WARM, STEPS = 3, 3
WEIGHT, GRADIENT, STATES = 12, 8, 16  # bytes that holding saves a step for each parameter
FP32 = 4


def least(parameters: int, room: int) -> float:
    """Bytes that a step moves at least when `room` bytes of model states may be held."""
    moved = float((WEIGHT + GRADIENT + STATES) * parameters)
    left = float(max(0, room))
    for saved, kinds in ((WEIGHT, 1), (GRADIENT, 1), (STATES, 2)):
        held = min(left, kinds * FP32 * parameters)
        moved -= held * saved / kinds / FP32
        left -= held
    return moved


def main() -> bool:
    arguments = parser(__doc__)
    arguments.add_argument("--limits", nargs="+", default=LIMITS, help="zinf's option memory")
    given = arguments.parse_args()
    table = Table(title=f"SmolLM2-135M, {given.tokens} tokens, AdamW, fp32: what a step moves")
    for heading in ("memory", "room for states", "least", "moved", "ratio", "step"):
        table.add_column(heading, justify="right")
    holds, ratios = True, []
    for limit in given.limits:
        done = _trained(limit, given)
        moved = statistics.median(_moved(step) for step in done["steps"])
        room = parse_bytes(limit) - done["least"]
        at_least = least(done["parameters"], room)
        ok = moved <= SURPLUS * at_least
        holds = holds and ok
        seconds = statistics.median(sum(p["seconds"] for p in step["phases"].values()) for step in done["steps"])
        ratios += [moved / at_least] if at_least else []
        ratio = f"{ratios[-1]:.2f}" if at_least else "-"
        mark = f"[{'green' if ok else 'red'}]{ratio}[/]"
        table.add_row(limit, *(f"{n / 1e9:.2f} GB" for n in (room, at_least, moved)), mark, f"{seconds:.2f} s")
        record("limits", memory=limit, room=room, at_least=at_least, moved=moved, seconds=seconds, holds=ok, **done)
    Console().print(table)
    question = f"bytes moved, over the least that the limit allows, the most at {len(given.limits)} limits"
    return verdict("limits", question, max(ratios, default=0.0), at_most=SURPLUS, also=holds)


def _trained(limit: str, given: Any) -> dict[str, Any]:
    options = {"memory": limit, "nvme": disk_folder(given.nvme)}
    settings = {"side": "zinf", "model": "smollm2", "tokens": given.tokens, "threads": given.threads}
    with Child(limit, "bench.trainer", {**settings, "options": options}) as child:
        parameters = child.ask("load")["parameters"]
        for _ in range(WARM):
            child.ask("step")
        return {"parameters": parameters, "steps": [child.ask("step") for _ in range(STEPS)], **child.ask("plan")}


def _moved(step: dict[str, Any]) -> int:
    phases = step["phases"].values()
    return sum(sum(phase[way].values()) for phase in phases for way in ("read", "written"))


if __name__ == "__main__":
    entry(main)
