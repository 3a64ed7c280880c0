"""From a bare schedule and a memory limit to a plan, by a simple rule: move only as much out of memory as must go.

Optimizer states are used once a step, parameters twice, gradients are written, read and often looked at; so they leave
memory in this order, each kind as a whole. What a candidate needs is asked of `evaluate`, which runs the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zcompiler.errors import DoesNotFit
from zcompiler.options import Options
from zcompiler.plan.plan import Homes, Plan
from zcompiler.plan.update import OPTIMIZER_WORK, least_bytes
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes

# Bytes by tier and where the peak is, for a pipeline over a schedule.
Evaluate = Callable[[Schedule, str], dict[str, tuple[int, str]]]

MIB = 1 << 20


def pipeline_of(homes: Homes, prefetch: int, ahead: bool = True) -> str:
    """The passes that carry the decisions out, as a spec. `ahead`: with the passes that trade memory for time."""
    spec = (
        f"partition-params{{home={homes.params}}},gather-params,release-params,"
        f"reduce-grads,offload-grads{{home={homes.grads}}}"
    )
    return f"{spec},keep-last-unit,keep-reused,prefetch-reads{{bytes={format_bytes(prefetch)}}}" if ahead else spec


def candidates(options: Options, compute: str, store: str) -> list[Homes]:
    """The placements to try, the one that moves least first; what the user forced stays as it is."""
    place = options.place
    forced = {"params": place.params, "grads": place.grads, "optimizer": place.optimizer}
    found: list[Homes] = []
    for moved in ((), ("optimizer",), ("optimizer", "params"), ("optimizer", "params", "grads")):
        homes = {
            kind: _tier(home, compute, store) if home != "auto" else (store if kind in moved else compute)
            for kind, home in forced.items()
        }
        if (candidate := Homes(**homes)) not in found:
            found.append(candidate)
    return found


def make_plan(
    bare: Callable[[Homes], Schedule],
    options: Options,
    compute: str,
    store: str,
    evaluate: Evaluate,
    fixed: Homes | None = None,
    taken: int = 0,
) -> Plan:
    """The first placement whose peak stays inside the limit.

    `bare` gives the schedule before any pass for a placement; `fixed` is the placement that an earlier graph of the
    same parameters already has; `taken` are the bytes of the limit that other graphs and models hold. Raises DoesNotFit
    with the smallest limit that would do.
    """
    reasons: list[str] = []
    tried: list[tuple[int, str, Homes]] = []
    for homes in [fixed] if fixed is not None else candidates(options, compute, store):
        schedule = bare(homes)
        most, where = evaluate(schedule, pipeline_of(homes, 0, ahead=False))[compute]
        if (update := _update_needs(schedule, homes)) > most:
            most, where = update, "the optimizer step"
        most += taken
        if most > options.memory:
            over = format_bytes(most - options.memory)
            reasons.append(f"not {homes}: {format_bytes(most)} at {where}, {over} over the limit")
            tried.append((most, where, homes))
            continue
        prefetch = _prefetch(options, schedule)
        pipeline = pipeline_of(homes, prefetch)
        peak = {tier: size for tier, (size, _) in evaluate(schedule, pipeline).items()}
        reasons.append(f"{homes}: {format_bytes(most)} at {where} of {format_bytes(options.memory)}")
        reasons.append(f"prefetch {format_bytes(prefetch)}: {_why(options)}")
        return Plan(homes, prefetch, pipeline, peak, tuple(reasons))
    raise _refusal(tried, options, store, taken)


def _tier(home: str, compute: str, store: str) -> str:
    return {"host": compute, "nvme": store}[home]


def _update_needs(schedule: Schedule, homes: Homes) -> int:
    """The least memory a streamed update takes: what rests in the compute tier, and the smallest buffers."""
    compute = schedule.compute_tier.name
    total = {kind: sum(v.nbytes for v in schedule.values if v.kind == kind) for kind in ("param", "grad", "state")}
    places = {"param": homes.params, "grad": homes.grads, "state": homes.optimizer}
    if not total["grad"] or homes.params == homes.optimizer == compute:
        return 0
    held = sum(total[kind] for kind, home in places.items() if home == compute)
    moved = sum(total[kind] for kind, home in places.items() if home != compute) / total["param"]
    return least_bytes(held, moved, OPTIMIZER_WORK)


def _prefetch(options: Options, schedule: Schedule) -> int:
    """Enough to read the largest bucket behind the units before it. The pass itself stays inside the limit."""
    if options.prefetch != "auto":
        return int(options.prefetch)
    return max((v.nbytes for v in schedule.values if v.kind == "param"), default=0)


def _why(options: Options) -> str:
    return "as asked" if options.prefetch != "auto" else "the largest unit, where the limit leaves room"


def _refusal(tried: Sequence[tuple[int, str, Homes]], options: Options, store: str, taken: int) -> DoesNotFit:
    most, where, homes = min(tried, key=lambda t: t[0])
    enough = -(-most // MIB)
    forced = [k for k in ("params", "grads", "optimizer") if getattr(options.place, k) == "host"]
    remedy = f"Set memory to at least {enough}MiB, use a smaller batch or a shorter sequence"
    if forced:
        remedy += f", or let {' and '.join(forced)} rest on {store} (option place)"
    elif taken:
        remedy += f", or let what comes first rest on {store}, too (option place)"
    others = f", {format_bytes(taken)} of it for what other graphs and models hold" if taken else ""
    return DoesNotFit(
        f"memory={format_bytes(options.memory)} is too small: the least any placement needs is {format_bytes(most)}"
        f"{others}, at {where} ({homes}). {remedy}"
    )
