"""Changes that may help, each planned again: what a step would take and hold then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zcompiler.advise.explained import Change, Outcome
from zcompiler.capture.tiling import is_part_of
from zcompiler.describe.described import Schedules
from zcompiler.errors import DoesNotFit
from zcompiler.options import OptionError, Options
from zcompiler.schedule.memory import peak
from zcompiler.schedule.sizes import format_bytes
from zcompiler.schedule.words import STORE
from zcompiler.torch_compat.tensors import each_tensor, tensors_in

MIB = 1 << 20
MORE = 1.25  # of the limit
TILES = 4
UNLIMITED = 1 << 50  # what no model needs
WORTH, SMALLER = 0.01, 0.05  # of the time and of the peak: less is no help
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Planned:
    """What zinf would do, and its figures."""

    found: Schedules
    outcome: Outcome


Plan = Callable[[Mapping[str, object], Any], Planned]  # options on top of the user's, a batch


@dataclass(frozen=True, slots=True)
class _Try:
    what: str
    options: dict[str, object]
    inputs: Any
    part: float = 1.0


def changes(
    plan: Plan,
    model: torch.nn.Module,
    inputs: Any,
    asked: Options,
    now: Outcome | None,
    at: str,
    refusal: DoesNotFit | None,
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Those that help most, the best first, and the others that were tried. `now`: the figures without any, None where
    nothing fits; `at`: the op that holds most."""
    tried: list[Change] = []
    for one in _candidates(model, inputs, asked, at, refusal):
        tried.append(_tried(one, plan, now))
    if refusal is None and now is not None and now.moved:
        tried += _without_limit(plan, inputs, asked, now)
    helpful = sorted((c for c in tried if _helps(c, now)), key=lambda c: (-round(c.gain, 2), _peak(c)))[:SHOWN]
    return tuple(helpful), tuple(change for change in tried if change not in helpful)


def _tried(one: _Try, plan: Plan, now: Outcome | None) -> Change:
    why = ""
    try:
        return _change(one, now, plan(one.options, one.inputs).outcome)
    except DoesNotFit:
        why = "does not fit"
    except MemoryError:
        why = "a step cannot be simulated"
    except OptionError:
        why = "cannot be done to this model"
    except Exception:  # a model may check its batch in any way
        if one.part == 1:
            raise
        why = "the model takes no such batch"
    return Change(one.what, one.options, one.part, None, 0.0, why)


def _candidates(
    model: torch.nn.Module, inputs: Any, asked: Options, at: str, refusal: DoesNotFit | None
) -> Iterator[_Try]:
    more = -(-refusal.least // MIB) * MIB if refusal is not None else int(asked.memory * MORE) // MIB * MIB
    yield _Try(f"memory={format_bytes(more)}", {"memory": more}, inputs)
    if any(choice != "auto" for _, choice in asked.activations.rules) or not asked.activations.rules:
        yield _Try("activations=auto", {"activations": "auto"}, inputs)
    if any(getattr(asked.place, kind) != "auto" for kind in ("params", "grads", "optimizer")):
        yield _Try("place: auto for each", {"place": {}}, inputs)
    if asked.prefetch != "auto":
        yield _Try("prefetch=auto", {"prefetch": "auto"}, inputs)
    if not asked.late:
        yield _Try("late=True", {"late": True}, inputs)
    for name in _large_weights(model, at):
        if not any(is_part_of(name, glob) for glob, _ in asked.tile or ()):
            rules = {name: TILES, **dict(asked.tile or ())}
            yield _Try(f"tile {name} in {TILES}", {"tile": rules}, inputs)
    if (half := _half(inputs)) is not None:
        yield _Try(*half)


def _without_limit(plan: Plan, inputs: Any, asked: Options, now: Outcome) -> Iterator[Change]:
    """The limit at which nothing has to move: what a plan holds that nothing limits."""
    planned = plan({"memory": UNLIMITED}, inputs)
    needs = 0
    for graph in planned.found.graphs:
        tier = graph.final.compute_tier
        others = UNLIMITED - (tier.budget or 0)
        needs = max(needs, peak(graph.final)[tier.name][0] + others)
    enough = -(-needs // MIB) * MIB
    if enough > asked.memory:
        moved = any(graph.plan.uses(STORE) for graph in planned.found.graphs) or planned.outcome.moved
        what = f"memory={format_bytes(enough)}, where all {'else ' if moved else ''}fits"
        yield _change(_Try(what, {"memory": enough}, inputs), now, planned.outcome)


def _large_weights(model: torch.nn.Module, at: str) -> list[str]:
    """The largest weight, and the largest of the unit that holds most."""
    sizes = {name: p.nbytes for name, p in model.named_parameters() if p.dim() > 1}
    unit = at.rpartition("@")[2].partition("/")[2]
    own = {name: n for name, n in sizes.items() if unit and (name == unit or name.startswith(f"{unit}."))}
    found = [max(some, key=lambda name: some[name]) for some in (sizes, own) if some]
    return list(dict.fromkeys(found))


def _half(inputs: Any) -> tuple[str, dict[str, object], Any, float] | None:
    """Half of the batch: of its sequences, or of the tokens of a single one. None where it cannot be told."""
    tensors = [t for t in tensors_in(inputs) if t.dim()]
    of_tokens = not any(t.is_floating_point() for t in tensors)
    for dim, what in ((0, "half the batch"), (1, "half the tokens"))[: 1 + of_tokens]:
        sizes = {t.shape[dim] for t in tensors if t.dim() > dim}
        if len(sizes) == 1 and (size := sizes.pop()) > 1:

            def cut(t: torch.Tensor, dim: int = dim, half: int = size // 2) -> torch.Tensor:
                return t.narrow(dim, 0, half) if t.dim() > dim else t

            return f"{what}, {size // 2} of {size}", {}, each_tensor(cut, inputs), (size // 2) / size
    return None


def _change(one: _Try, now: Outcome | None, after: Outcome) -> Change:
    gain = 1 - after.seconds / one.part / now.seconds if now is not None else 0.0
    return Change(one.what, one.options, one.part, after, gain)


def _helps(change: Change, now: Outcome | None) -> bool:
    if change.after is None:
        return False
    if now is None or change.gain >= WORTH:
        return True
    return change.gain > -WORTH and change.part == 1 and change.after.peak <= now.peak * (1 - SMALLER)


def _peak(change: Change) -> int:
    return change.after.peak if change.after is not None else 0
