"""A Plan: every decision about a graph or an update, frozen, with the reason for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from zcompiler.options import Activations

KINDS = ("params", "grads", "optimizer")
UNCUT = "uncut"  # the form of a graph of which each phase is one region


@dataclass(frozen=True, slots=True)
class Homes:
    """The tier in which each kind of model state rests."""

    params: str
    grads: str
    optimizer: str

    def __str__(self) -> str:
        return " ".join(f"{kind}={getattr(self, kind)}" for kind in KINDS)

    def uses(self, tier: str) -> bool:
        """Whether any kind rests there."""
        return tier in (self.params, self.grads, self.optimizer)

    def decided(self, trained: bool, stored: bool) -> tuple[tuple[str, str], ...]:
        """The homes that further graphs find decided, by kind. An evaluation (not `trained`) decides nothing about
        gradients and states of what it holds in memory (not `stored`), and not for good that it is there: when it is
        trained, it takes more."""
        decided = KINDS if trained or stored else ("params",)
        return tuple((kind, getattr(self, kind)) for kind in decided)

    def held(self, tier: str, states: int, trained: bool) -> int:
        """How many times the bytes of the parameters rest in a tier between steps, with `states` bytes of state for
        each of parameters."""
        made = (self.grads == tier) + states * (self.optimizer == tier) if trained else 0
        return (self.params == tier) + made


Placement = Mapping[str, Homes]  # by bucket


def describe(placement: Placement) -> str:
    """`params=nvme grads=host optimizer=nvme`; where units differ, how many of them: `params=nvme(20)+host(10)`."""
    texts = []
    for kind in KINDS:
        counts = Counter(getattr(homes, kind) for homes in placement.values())
        tiers = counts.most_common()
        texts.append(f"{kind}=" + (tiers[0][0] if len(tiers) == 1 else "+".join(f"{t}({n})" for t, n in tiers)))
    return " ".join(texts)


@dataclass(frozen=True, slots=True)
class Holds:
    """A size that may change from call to call: its `symbol`, `what` it is, its number when the plan was made, and the
    largest for which the plan stays below the limit, with the others at theirs; None where it does not matter."""

    symbol: str
    what: str
    now: int
    most: int | None

    def __str__(self) -> str:
        return f"{self.what} {'of any number' if self.most is None else f'up to {self.most}'} (planned at {self.now})"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the passes are told. `prefetch` is in bytes; `peak` gives bytes by tier as the finished schedule needs;
    `least` is the smallest limit that would have done, as far as the planner tried. `moved`: about the bytes that a
    step moves for model states; `saved`: those of activations that forward leaves to backward; `seconds`: what a step
    takes, where a machine was given. `activations` are all decided; `form` says what regions take for parameters: them
    as they rest ("plain", or "uncut" where each phase is one region), their rows ("rows"), or their cast copies
    ("low"). `taken`: bytes of the limit that others hold; `trains`: whether there is a backward; `holds`: for which
    sizes, where some are symbols; `tile`: what was in tiles, as the option of that name says it.
    """

    placement: Placement
    prefetch: int
    pipeline: str
    peak: dict[str, int]
    least: int
    reasons: tuple[str, ...]
    moved: int = 0
    saved: int = 0
    seconds: float | None = None
    activations: Activations = Activations()
    form: str = "plain"
    taken: int = 0
    trains: bool = True
    holds: tuple[Holds, ...] = ()
    tile: tuple[tuple[str, int], ...] = ()

    def uses(self, tier: str) -> bool:
        """Whether anything rests there."""
        return any(homes.uses(tier) for homes in self.placement.values())
