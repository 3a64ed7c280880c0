"""What a schedule pass is, and the frozen facts it is given."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import ClassVar

import torch.fx

from zcompiler.errors import ZinfError
from zcompiler.schedule.model import Schedule, Tier
from zcompiler.schedule.words import COMM_LANE, MOVES, Move


class PassFailure(ZinfError):
    """A pass was asked for something that this schedule does not allow; the message says what and the remedy."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The machine as one schedule sees it. `moves` join neighbouring tiers that both exist; `comm` is the lane of
    collectives."""

    tiers: tuple[Tier, ...]
    moves: tuple[Move, ...]
    comm: str
    rank: int
    world: int

    @classmethod
    def of(cls, schedule: Schedule) -> Facts:
        names = {t.name for t in schedule.tiers}
        moves = tuple(m for m in MOVES if m.src in names and m.dst in names)
        return cls(schedule.tiers, moves, COMM_LANE, schedule.rank, schedule.world)

    @property
    def compute(self) -> str:
        """The name of the tier that regions run from."""
        return next(t.name for t in self.tiers if t.compute)

    def route(self, src: str, dst: str) -> tuple[Move, ...]:
        """The moves that carry a value from one tier to another, in order; none if they are the same tier.

        PassFailure if there is no way."""
        names = [t.name for t in self.tiers]
        for name in (src, dst):
            if name not in names:
                raise PassFailure(f"there is no tier {name}; this schedule has {', '.join(names)}")
        reached: dict[str, tuple[Move, ...]] = {src: ()}
        todo = [src]
        for at in todo:
            for move in self.moves:
                if move.src == at and move.dst not in reached:
                    reached[move.dst] = (*reached[at], move)
                    todo.append(move.dst)
        if dst not in reached:
            raise PassFailure(f"no lane leads from {src} to {dst}; this schedule has {', '.join(names)}")
        return reached[dst]


class Pass(ABC):
    """One rewrite of a schedule's graph. Subclasses are frozen dataclasses; their fields are the options.

    `after`: passes that may not come later than this one. `conflicts`: passes that may not be in the same pipeline.
    `leaves_open`: verifier rules that may fail after this pass, because a later one is to close them.
    """

    name: ClassVar[str]
    after: ClassVar[tuple[str, ...]] = ()
    conflicts: ClassVar[tuple[str, ...]] = ()
    leaves_open: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        """Rewrite the graph in place. PassFailure when that is impossible."""


def chosen_by(only: Sequence[str], keep: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name matches one of the globs `only` (none given: any name will do) and none of `keep`."""
    wanted, left = _any_of(only), _any_of(keep)
    return lambda name: (not only or wanted(name)) and not left(name)


def _any_of(globs: Sequence[str]) -> Callable[[str], bool]:
    """Plans name units one by one, hundreds of them: those need no matching."""
    names = frozenset(glob for glob in globs if not any(c in glob for c in "*?["))
    if len(names) == len(set(globs)):
        return names.__contains__
    pattern = re.compile("|".join(translate(glob) for glob in globs if glob not in names))
    return lambda name: name in names or pattern.match(name) is not None
