"""From a bare schedule and a memory limit to a plan: move only as much out of memory as must go.

Whether a placement fits is asked of `evaluate`, which runs the passes on it. If not everything can stay, everything
that the user has not forced goes, and what fits is taken back in, unit by unit (see holding.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zcompiler.errors import DoesNotFit
from zcompiler.machine.machine import Machine
from zcompiler.machine.work import Work
from zcompiler.options import Options
from zcompiler.plan.assumed import Evaluate, assumed_update, update_needs
from zcompiler.plan.holding import Account, Held, bytes_moved, hold_what_fits, resting_bytes, state_bytes
from zcompiler.plan.plan import KINDS, Homes, Placement, Plan, describe
from zcompiler.plan.price import step_seconds
from zcompiler.plan.saved import activations_needed_at_once, offloaded_activations, saved_bytes
from zcompiler.plan.spec import pipeline_of
from zcompiler.schedule.memory import peak
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.waits import with_waits

MIB = 1 << 20
# Bytes that stay free of states at rest for the buffers of an update: a part of the limit, and less where so little
# moves that what could be held instead would be a good part of it.
ROOM = 1 / 12
MOVED_BY_ROOM = 40
# In which the planner corrects its account of what a choice holds.
ROUNDS = 6
# How many times the least prefetch distance is tried, as long as it gains, and how near to the best a shorter one is
# good enough.
FURTHER = (2, 4)
WORTH = 1.01


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be placed. `bare` gives the schedule before any pass for a placement; `buckets` are in the order of
    use; `gradients` maps gradient values to buckets; `fixed` are the homes, by bucket and kind, that earlier graphs
    chose; `taken` the bytes of the limit that other graphs and models hold; `fixed_activations` those that have to stay
    in memory; `stored` the buckets that hold the same parameters in parts, which rest in the store as one. With a
    `machine` plans are priced by its time; `works` has what each run asks of it. `sizes` says, for an error,
    which sizes it is for, of those that may change from call to call."""

    bare: Callable[[Placement], Schedule]
    buckets: Sequence[str]
    gradients: Mapping[str, str]
    fixed: Mapping[str, Mapping[str, str]]
    taken: int = 0
    fixed_activations: Sequence[str] = ()
    stored: frozenset[str] = frozenset()
    machine: Machine | None = None
    works: Mapping[str, Work] = field(default_factory=dict)
    sizes: str = ""


def make_plan(asked: Question, options: Options, compute: str, store: str, evaluate: Evaluate) -> Plan:
    """The placement that moves least, as far as the planner knows. DoesNotFit with the smallest limit that would do."""
    reasons: list[str] = []
    least: list[int] = []
    tried: list[tuple[int, str, Placement]] = []
    found: list[tuple[int, Placement, list[str]]] = []
    starts = _uniform(asked, options, compute, store)
    bare = asked.bare(starts[0])
    offloaded = offloaded_activations(bare, options.activations, store, asked.fixed_activations)

    known: dict[tuple[tuple[str, Homes], ...], Account] = {}  # one start often leads to what another has led to

    def account_of(placement: Placement) -> Account:
        key = tuple(placement.items())
        if key not in known:
            spec = pipeline_of(placement, asked.gradients, compute, 0, offloaded, ahead=False)
            known[key] = Account(evaluate(asked.bare(placement), spec), asked.gradients)
        return known[key]

    def starting() -> Iterator[Placement]:
        yield from starts
        if not found:
            yield from _largest_gradient_kept(asked, options, starts, compute, bare)

    for placement in starting():
        account = account_of(placement)
        schedule, most, where = account.schedule, account.most, account.where
        if (update := update_needs(schedule, placement, asked.gradients)) > most:
            most, where = update, "the optimizer step"
        most += asked.taken
        least.append(most)
        text = f"{describe(placement)}: {format_bytes(most)} at {where}"
        if most > options.memory:
            reasons.append(f"not {text}, {format_bytes(most - options.memory)} over the limit")
            tried.append((most, where, placement))
            continue
        placement, why = _with_what_fits(asked, options, store, placement, account_of)
        why.insert(0, f"{text} of {format_bytes(options.memory)}")
        found.append((bytes_moved(schedule, placement, asked.gradients, options.late), placement, why))
        if found[-1][0] == 0:
            break
    trains = any(region.phase == "bwd" for region in bare.regions)
    if not found:
        raise _refusal(tried, asked, options, (compute, store), trains)
    moved, placement, why = min(found, key=lambda f: f[0])

    def finished(prefetch: int) -> _Finished:
        pipeline = pipeline_of(placement, asked.gradients, compute, prefetch, offloaded)
        schedule = evaluate(asked.bare(placement), pipeline)
        return _Finished(prefetch, pipeline, schedule, _seconds(asked, schedule, placement, options, evaluate))

    final, why_prefetch = _best_prefetch(options, bare, placement, finished)
    peaks = {tier: size for tier, (size, _) in peak(final.schedule).items()}
    reasons += [
        *why,
        f"{describe(placement)}: {format_bytes(peaks[compute] + asked.taken)} with prefetch and what is kept",
        f"prefetch {format_bytes(final.prefetch)}: {why_prefetch}",
        f"activations {options.activations}: as asked",
    ]
    if final.seconds is not None:
        reasons.append(f"a step is to take {final.seconds:.3g} s")
    return Plan(
        placement,
        final.prefetch,
        final.pipeline,
        peaks,
        min(least),
        tuple(reasons),
        moved,
        saved_bytes(bare),
        final.seconds,
        options.activations,
        taken=asked.taken,
        trains=trains,
    )


def _with_what_fits(
    asked: Question,
    options: Options,
    store: str,
    first: Placement,
    account_of: Callable[[Placement], Account],
) -> tuple[Placement, list[str]]:
    """The placement with what has room in memory taken back into it, as far as the planner may choose, and why.

    What is taken back frees the buffers through which it moved, which may make room for more. So once a choice is made,
    it is asked what it really holds, and the next choice counts with the difference; what is then left over is filled.
    """
    limit, account = options.memory - asked.taken, account_of(first)
    placement, after = first, account
    reasons: list[str] = []

    def choose(start: Placement, account: Account, slack: int) -> Held:
        free = {k: [b for b in asked.buckets if _is_free(k, b, asked, options, start, store)] for k in KINDS}
        room = _update_room(account.schedule, placement, asked, options)
        return hold_what_fits(account, start, free, limit, room, options.late, slack)

    def most(found: Account, placement: Placement) -> tuple[int, int]:
        """Of graph and update, and of the graph alone."""
        return max(found.most, update_needs(found.schedule, placement, asked.gradients)), found.most

    slack = fitted = 0
    for _ in range(ROUNDS):
        held = choose(first, account, slack)
        if held.placement == placement:
            break
        found = account_of(held.placement)
        needed, of_graph = most(found, held.placement)
        if needed > limit:
            slack = (slack + fitted) // 2
            continue
        placement, after, reasons, fitted = held.placement, found, list(held.reasons), slack
        slack = held.most - of_graph
    held = choose(placement, after, 0)
    if held.placement != placement and most(account_of(held.placement), held.placement)[0] <= limit:
        placement, reasons = held.placement, [*reasons, *held.reasons]
    return placement, reasons


def _update_room(schedule: Schedule, placement: Placement, asked: Question, options: Options) -> int:
    """Bytes of buffers for an update of what moves: enough to keep the disk busy, or what it cannot do without."""
    needs = update_needs(schedule, placement, asked.gradients)
    needs -= sum(resting_bytes(schedule, placement, asked.gradients).values())
    moved = bytes_moved(schedule, placement, asked.gradients, options.late)
    return max(int(min(ROOM * options.memory, moved / MOVED_BY_ROOM)), needs)


def _uniform(asked: Question, options: Options, compute: str, store: str) -> list[Placement]:
    """Placements with everything in memory, then with everything in the store, then with less and less there; as far as
    user and earlier graphs leave a choice. One of them is the least in memory, which of them depends on the model."""
    found: list[Placement] = []
    for moved in ((), KINDS, ("optimizer", "params"), ("optimizer",)):
        placement = {}
        for bucket in asked.buckets:
            forced = {kind: getattr(options.place, kind) for kind in KINDS}
            homes = {
                kind: _tier(home, compute, store) if home != "auto" else (store if kind in moved else compute)
                for kind, home in forced.items()
            }
            if bucket in asked.stored:
                homes["params"] = store
            placement[bucket] = Homes(**{**homes, **asked.fixed.get(bucket, {})})
        if placement not in found:
            found.append(placement)
    return found


def _largest_gradient_kept(
    asked: Question, options: Options, starts: Sequence[Placement], compute: str, schedule: Schedule
) -> list[Placement]:
    """The placements with all gradients in the store, but for the largest: it is copied to the buffer that it is
    written from, and where it is much larger than the others, an embedding's, that takes more than it would at rest."""
    sizes = {b: n for (kind, b), n in state_bytes(schedule, asked.gradients).items() if kind == "grads"}
    if options.place.grads != "auto" or not sizes:
        return []
    largest = max(sizes, key=lambda b: sizes[b])
    return [
        {**placement, largest: replace(placement[largest], grads=compute)}
        for placement in starts
        if "grads" not in asked.fixed.get(largest, {}) and placement[largest].grads != compute
    ]


def _is_free(kind: str, bucket: str, asked: Question, options: Options, placement: Placement, store: str) -> bool:
    chosen = getattr(options.place, kind) == "auto" and kind not in asked.fixed.get(bucket, {})
    chosen = chosen and bucket not in asked.stored
    return chosen and getattr(placement[bucket], kind) == store


def _tier(home: str, compute: str, store: str) -> str:
    return {"host": compute, "nvme": store}[home]


@dataclass(frozen=True, slots=True)
class _Finished:
    """The schedule behind all passes, and what a step of it takes, where a machine was given."""

    prefetch: int
    pipeline: str
    schedule: Schedule
    seconds: float | None


def _best_prefetch(
    options: Options, schedule: Schedule, placement: Placement, finished: Callable[[int], _Finished]
) -> tuple[_Finished, str]:
    """How far ahead to read: at least the largest bucket that moves, and the activations of a region, behind the units
    before it; further where a step gets shorter. The pass stays inside the limit."""
    if options.prefetch != "auto":
        return finished(int(options.prefetch)), "as asked"
    compute = schedule.compute_tier.name
    params = (v for v in schedule.values if v.kind == "param")
    least = max((v.nbytes for v in params if placement[v.name].params != compute), default=0)
    least += activations_needed_at_once(schedule) if options.activations.offload else 0
    first = finished(least)
    if first.seconds is None or not least:
        return first, "the largest unit, where the limit leaves room"
    tried = [(first, first.seconds)]
    for more in FURTHER:
        longer = finished(least * more)
        tried.append((longer, longer.seconds or 0.0))
        if tried[-1][1] * WORTH > tried[-2][1]:
            break  # what twice as far has not gained, four times as far will not either
    enough = WORTH * min(seconds for _, seconds in tried)
    best = next(one for one, seconds in tried if seconds <= enough)
    words = ", ".join(f"{format_bytes(one.prefetch)} {seconds:.3g} s" for one, seconds in tried)
    return best, f"a step takes, by how far it reads ahead where the limit leaves room: {words}"


def _seconds(
    asked: Question, schedule: Schedule, placement: Placement, options: Options, evaluate: Evaluate
) -> float | None:
    if asked.machine is None:
        return None
    update = assumed_update(schedule, placement, asked.gradients, options.late, evaluate)
    if update.schedule is not None:
        update = replace(update, schedule=with_waits(update.schedule))
    return step_seconds(with_waits(schedule), asked.works, update, asked.machine)


def _refusal(
    tried: Sequence[tuple[int, str, Placement]],
    asked: Question,
    options: Options,
    tiers: tuple[str, str],
    trains: bool,
) -> DoesNotFit:
    (compute, store), taken = tiers, asked.taken
    most, where, placement = min(tried, key=lambda t: t[0])
    enough = -(-most // MIB)
    forced = [k for k in KINDS if getattr(options.place, k) == "host"]
    remedy = f"Set memory to at least {enough}MiB, use a smaller batch or a shorter sequence"
    if trains and not options.activations.rules:
        remedy += f", let activations go to {store} or be computed again (option activations)"
    if forced:
        remedy += f", or let {' and '.join(forced)} rest on {store} (option place)"
    elif taken:
        remedy += f", or let what comes first rest on {store}, too (option place)"
    if asked.sizes and any(compute in homes.values() for homes in asked.fixed.values()):
        remedy += ", or call the largest batch first: what a smaller one has left room for stays in memory"
    if options.plan is not None:
        remedy += ", or leave out option plan, so that another one is looked for"
    others = f", {format_bytes(taken)} of it for what other graphs and models hold" if taken else ""
    sizes = f" for {asked.sizes}" if asked.sizes else ""
    what = "the least any placement needs is" if options.plan is None else "the given plan needs"
    return DoesNotFit(
        f"memory={format_bytes(options.memory)} is too small{sizes}: {what} {format_bytes(most)}"
        f"{others}, at {where} ({describe(placement)}). {remedy}",
        most,
    )
