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
    tried: list[tuple[float, Made, Plan]] = []
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
        tried.append((_cost(plan), made, plan))
        words.append(f"{name} {_cost(plan):.3g}")
        return _cost(plan)

    keep = attempt("keep", 0)
    if not free:
        return _found(tried, refused, [])
    if tried:
        if not tried[0][2].moved:
            return _found(tried, refused, ["activations kept: nothing has to move"])
        at_best = _cost(without(asked.resolved(dict.fromkeys(free, "keep"))))
        if keep * (1 - WORTH) <= at_best:
            return _found(tried, refused, [f"activations kept: without any a step takes {at_best:.3g} of {keep:.3g}"])
    costs = {choice: attempt(choice, len(free)) for choice in MOVING}
    best = min(costs, key=lambda choice: costs[choice])
    half = len(free) // 2
    if costs[best] < float("inf") and half:
        attempt(best, half)
        if quarter := half // 2:
            attempt(best, half - quarter if keep < costs[best] else half + quarter)
    if keep < float("inf") and keep * (1 - WORTH) <= min(cost for cost, *_ in tried):
        del tried[1:]
    return _found(tried, refused, [f"activations, by what a step takes: {', '.join(words)}"])


def _found(
    tried: Sequence[tuple[float, Made, Plan]], refused: Sequence[DoesNotFit], reasons: list[str]
) -> tuple[Made, Plan, list[str]]:
    if not tried:
        raise min(refused, key=lambda refusal: refusal.least)
    _, made, plan = min(tried, key=lambda one: one[0])
    return made, plan, reasons


def _cost(plan: Plan) -> float:
    """Seconds of a step; bytes where no machine was given."""
    return plan.seconds if plan.seconds is not None else float(plan.moved)
