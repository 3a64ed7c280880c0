"""Which choice of activations the planner makes, by what made-up plans of it cost."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from zcompiler.errors import DoesNotFit
from zcompiler.options import Activations
from zcompiler.plan.choose import choose_activations
from zcompiler.plan.plan import Plan

UNITS = tuple(f"l{i}" for i in range(8))
AUTO = Activations((("*", "auto"),))
Cost = Callable[[tuple[str, ...]], float | None]


def plan(seconds: float, moved: int = 1) -> Plan:
    return Plan({}, 0, "", {}, 0, (), moved, 0, seconds)


def chosen(cost: Cost, at_best: float = 0.0, asked: Activations = AUTO, moved: int = 1) -> tuple[str, ...]:
    """What is chosen unit by unit; `cost` gives seconds of a choice, None for one that does not fit."""

    def make(activations: Activations) -> tuple[tuple[str, ...], Plan]:
        choices = tuple(map(activations.of, UNITS))
        seconds = cost(choices)
        if seconds is None:
            raise DoesNotFit("too small", 100 - sum(c != "keep" for c in choices))
        return choices, plan(seconds, moved)

    return choose_activations(asked, UNITS, make, lambda _: plan(at_best))[0]


def test_all_are_kept_where_nothing_has_to_move() -> None:
    assert chosen(lambda c: 5.0 if set(c) == {"keep"} else 1.0, moved=0) == ("keep",) * 8


def test_what_was_captured_for_a_choice_that_does_not_fit_is_gone_by_the_next() -> None:
    class Capture:
        pass

    refused: list[weakref.ref[Capture]] = []

    def make(activations: Activations) -> tuple[str, Plan]:
        assert [one() for one in refused] == [None] * len(refused)
        if len(refused) == 2:
            return activations.of("l0"), plan(1.0)
        capture = Capture()
        refused.append(weakref.ref(capture))
        raise DoesNotFit("too small", 100)

    assert choose_activations(AUTO, UNITS[:1], make, lambda _: plan(0.0))[0] == "recompute" and len(refused) == 2


def test_only_the_best_choice_is_held_and_the_first_as_long_as_it_may_be_taken() -> None:
    class Capture:
        pass

    seconds = {"keep": 9.0, "nvme": 8.9, "recompute": 5.0, "recompute+nvme": 6.0}
    made: list[weakref.ref[Capture]] = []
    held: list[list[int]] = []

    def make(activations: Activations) -> tuple[Capture, Plan]:
        held.append([i for i, one in enumerate(made) if one() is not None])
        capture = Capture()
        made.append(weakref.ref(capture))
        return capture, plan(seconds[activations.of("l0")])

    best = choose_activations(AUTO, UNITS[:1], make, lambda _: plan(0.0))[0]
    assert best is made[2]() and held == [[], [0], [0, 1], [2]]


def test_nothing_else_is_tried_where_even_no_activations_would_save_little() -> None:
    seen = []
    chosen(lambda c: seen.append(c) or 1.0, at_best=0.98)  # type: ignore[func-returns-value]
    assert seen == [("keep",) * 8]


@pytest.mark.parametrize("best", ["nvme", "recompute", "recompute+nvme"])
def test_the_shortest_step_is_chosen(best: str) -> None:
    assert chosen(lambda c: 4.0 - c.count(best) / 8) == (best,) * 8


def test_only_the_first_units_move_where_that_is_shorter() -> None:
    def shortest_at(count: int) -> tuple[str, ...]:
        return chosen(lambda c: 4.0 + abs(c.count("nvme") - count) + 9.0 * any("recompute" in one for one in c))

    assert shortest_at(6) == ("nvme",) * 6 + ("keep",) * 2
    assert shortest_at(2) == ("nvme",) * 2 + ("keep",) * 6


def test_what_wins_too_little_is_not_done() -> None:
    assert chosen(lambda c: 1.0 if set(c) == {"keep"} else 0.99) == ("keep",) * 8


def test_what_does_not_fit_is_not_chosen() -> None:
    assert chosen(lambda c: None if "keep" in c else 9.0 - c.count("recompute")) == ("recompute",) * 8


def test_units_that_the_user_has_decided_stay_so() -> None:
    asked = Activations((("l0", "recompute"), ("l1", "keep"), ("*", "auto")))
    assert chosen(lambda c: 9.0 - c.count("nvme"), asked=asked) == ("recompute", "keep", *("nvme",) * 6)
    asked = Activations((("l[01]", "auto"), ("*", "nvme")))
    assert chosen(lambda c: 1.0 + c.count("nvme"), asked=asked) == ("keep", "keep", *("nvme",) * 6)


def test_a_refusal_names_the_smallest_limit_of_all() -> None:
    with pytest.raises(DoesNotFit) as refused:
        chosen(lambda _: None)
    assert refused.value.least == 92
