"""What becomes of activations where the user leaves it to zinf: the choice with the shortest step, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TypeVar

from zcompiler.errors import DoesNotFit
from zcompiler.options import Activations
from zcompiler.plan.plan import Plan

MOVING = ("nvme", "recompute", "recompute+nvme")
WORTH = 0.03  # of a step, for which activations are moved

Made = TypeVar("Made")


def choose_activations(
    asked: Activations,
    units: Sequence[str],
    make: Callable[[Activations], tuple[Made, Plan]],
    without: Callable[[Activations], Plan],
) -> tuple[Made, Plan, list[str]]:
    """The best that `make` gives for a choice, its plan, and why. `units` in the order of use.

    All are kept where nothing has to move, or where a step would hardly be shorter even `without` any activations.
    Otherwise each choice is tried for all units that the user leaves open, and the best also for half of them, and a
    quarter more or less: for the first ones, whose activations wait longest.
    Raises what `make` raised, DoesNotFit with the smallest limit, when no choice fits.
    """
    free = [unit for unit in units if asked.of(unit) == "auto"]
    first: list[tuple[float, Made, Plan]] = []
    best: list[tuple[float, Made, Plan]] = []  # the others are let go: each holds graphs
    refused: list[DoesNotFit] = []
    words: list[str] = []

    def attempt(choice: str, count: int) -> float:
        chosen = {unit: choice if i < count else "keep" for i, unit in enumerate(free)}
        name = choice if count in (0, len(free)) else f"{choice} in {count} units"
        try:
            made, plan = make(asked.resolved(chosen))
        except DoesNotFit as refusal:
            refused.append(copy(refusal))  # without its frames, which hold what was captured for this choice
            words.append(f"{name} does not fit")
            return float("inf")
        cost = _cost(plan)
        words.append(f"{name} {cost:.3g}")
        if count == 0:
            first.append((cost, made, plan))
        if not best or cost < best[0][0]:
            best[:] = [(cost, made, plan)]
        if first and first[0][0] * (1 - WORTH) > best[0][0]:
            first.clear()
        return cost

    keep = attempt("keep", 0)
    if not free:
        return _found(first, refused, [])
    if first:
        if not first[0][2].moved:
            return _found(first, refused, ["activations kept: nothing has to move"])
        at_best = _cost(without(asked.resolved(dict.fromkeys(free, "keep"))))
        if keep * (1 - WORTH) <= at_best:
            return _found(first, refused, [f"activations kept: without any a step takes {at_best:.3g} of {keep:.3g}"])
    costs = {choice: attempt(choice, len(free)) for choice in MOVING}
    moving = min(costs, key=lambda choice: costs[choice])
    half = len(free) // 2
    if costs[moving] < float("inf") and half:
        attempt(moving, half)
        if quarter := half // 2:
            attempt(moving, half - quarter if keep < costs[moving] else half + quarter)
    return _found(first or best, refused, [f"activations, by what a step takes: {', '.join(words)}"])


def _found(
    chosen: Sequence[tuple[float, Made, Plan]], refused: Sequence[DoesNotFit], reasons: list[str]
) -> tuple[Made, Plan, list[str]]:
    if not chosen:
        raise min(refused, key=lambda refusal: refusal.least)
    ((_, made, plan),) = chosen
    return made, plan, reasons


def _cost(plan: Plan) -> float:
    """Seconds of a step; bytes where no machine was given."""
    return plan.seconds if plan.seconds is not None else float(plan.moved)
