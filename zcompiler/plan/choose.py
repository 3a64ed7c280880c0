"""What becomes of activations where the user leaves it to zinf: the choice with the shortest step, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from zcompiler.errors import DoesNotFit
from zcompiler.options import Activations
from zcompiler.plan.plan import Plan
from zcompiler.schedule.sizes import format_bytes

MOVING = ("nvme", "recompute", "recompute+nvme")
# Of the parameters' moves a step makes at most so many for each byte that activations leave free.
MOVES = 3
# What a choice may win at most, as a part of the bytes that move, to be looked at; and of the time, to be made.
WORTH_LOOKING = 0.05
WORTH = 0.03

Made = TypeVar("Made")


def choose_activations(
    asked: Activations, units: Sequence[str], make: Callable[[Activations], tuple[Made, Plan]]
) -> tuple[Made, Plan, list[str]]:
    """The best that `make` gives for a choice, its plan, and why. `units` in the order of use.

    All are kept where nothing has to move. Otherwise each choice is tried for all units that the user leaves open, and
    the best also for half of them, and a quarter more or less: for the first ones, whose activations wait longest.
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
            refused.append(refusal)
            words.append(f"{name} does not fit")
            return float("inf")
        cost = plan.seconds if plan.seconds is not None else float(plan.moved)
        tried.append((cost, made, plan))
        words.append(f"{name} {cost:.3g} s" if plan.seconds is not None else f"{name} moves {format_bytes(plan.moved)}")
        return cost

    keep = attempt("keep", 0)
    if not free:
        return _found(tried, refused, [])
    if tried and (why := _not_worth_a_look(tried[0][2])):
        return _found(tried, refused, [f"activations kept: {why}"])
    costs = {choice: attempt(choice, len(free)) for choice in MOVING}
    best = min(costs, key=lambda choice: costs[choice])
    if costs[best] < float("inf") and len(free) > 1:
        half = len(free) // 2
        quarter = half // 2
        if quarter:
            attempt(best, half - quarter if attempt(best, half) <= costs[best] else half + quarter)
        else:
            attempt(best, half)
    if keep < float("inf") and keep * (1 - WORTH) <= min(cost for cost, *_ in tried):
        del tried[1:]
    return _found(tried, refused, [f"activations, as a step takes: {', '.join(words)}"])


def _found(
    tried: Sequence[tuple[float, Made, Plan]], refused: Sequence[DoesNotFit], reasons: list[str]
) -> tuple[Made, Plan, list[str]]:
    if not tried:
        raise min(refused, key=lambda refusal: refusal.least)
    _, made, plan = min(tried, key=lambda one: one[0])
    return made, plan, reasons


def _not_worth_a_look(plan: Plan) -> str:
    if not plan.moved:
        return "nothing has to move"
    if MOVES * plan.saved < WORTH_LOOKING * plan.moved:
        return f"they are {format_bytes(plan.saved)}, and {format_bytes(plan.moved)} of model states move"
    return ""
