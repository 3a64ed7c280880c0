"""What an explanation is: frozen data, and its text."""

from __future__ import annotations

from dataclasses import dataclass, field

# Kinds of what is held in memory, as the text calls them.
AT_REST, GATHERED, GRADIENTS, STATES = "parameters at rest", "parameters gathered", "gradients", "optimizer states"
ACTIVATIONS, OUTPUTS, TEMPORARIES = "activations", "outputs", "temporaries"


@dataclass(frozen=True, slots=True)
class Group:
    """Units, in the order of their use, whose states rest in the same tiers. `homes` and `sizes` (bytes of all of them
    together) by kind: params, grads, optimizer; a kind that they have not is missing."""

    units: tuple[str, ...]
    homes: dict[str, str]
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Holding:
    """What is held of one kind: bytes, of how many values, and the names and bytes of the largest."""

    kind: str
    nbytes: int
    count: int
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a schedule holds in a tier, of which budget (None: unlimited), at which op, and what that is."""

    schedule: str
    tier: str
    nbytes: int
    budget: int | None
    at: str
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """Waits of one kind together: what for and why in words, seconds, how many, and the longest by its event."""

    what: str
    why: str
    seconds: float
    count: int
    longest: str
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class LaneTime:
    """Seconds of a step that a lane works, that computing waits for it, that the end of a phase does, and that it works
    unnoticed; and the causes of the waits, the longest first."""

    lane: str
    busy: float
    exposed: float
    at_end: float
    hidden: float
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that comes again and again, simulated. `in_place`: seconds in which the optimizer updates what is in
    memory, part of `seconds`. `moved`: bytes by lane. `peak`: bytes by tier, those of an update beside a forward with
    it. `estimated`: whether compute is an estimate, as a text has no FLOPs."""

    machine: str
    seconds: float
    phases: tuple[tuple[str, float], ...]
    in_place: float
    lanes: tuple[LaneTime, ...]
    moved: dict[str, int]
    peak: dict[str, int]
    estimated: bool = False

    @property
    def waited(self) -> float:
        return sum(lane.exposed + lane.at_end for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan in figures: seconds of a step, bytes that it moves, and the most that it holds in the compute tier."""

    seconds: float
    moved: int
    peak: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was planned. `what` to change, in words; `options` that say so; `part` of the batch that a step
    then does; `after`: None if it cannot be planned, and then `why`. `gain`: which part of the time of a whole batch it
    saves."""

    what: str
    options: dict[str, object]
    part: float
    after: Outcome | None
    gain: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a plan, or a schedule, is as it is.

    `activations`: bytes by home of what forward leaves to backward. `helpful`: at most three changes that would make a
    step shorter or smaller, the best first; `others`: what was tried besides. `hints`: what may help, where nothing
    could be planned again. `refused`: why there is no plan; then there is
    nothing but the changes that make one possible. `str()` is the text, in 80 columns.
    """

    title: str
    groups: tuple[Group, ...] = ()
    activations: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    peaks: tuple[Peak, ...] = ()
    step: StepTime | None = None
    now: Outcome | None = None
    helpful: tuple[Change, ...] = ()
    others: tuple[Change, ...] = ()
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        from zcompiler.advise.text import as_text

        return as_text(self)
