"""partition-params: gives parameters a home and a shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass, chosen_by
from zcompiler.schedule.graph import header


@dataclass(frozen=True)
class PartitionParams(Pass):
    """Each parameter that matches `only` and not `keep` rests in `home`, one shard of ceil(nbytes / world) a rank."""

    home: str
    only: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    name: ClassVar[str] = "partition-params"
    leaves_open: ClassVar[frozenset[str]] = frozenset({"operand-live", "budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        facts.route(self.home, facts.compute)  # says what is wrong when the home is no tier or cannot be reached
        values, chosen = header(graph).values, chosen_by(self.only, self.keep)
        for name, value in values.items():
            if value.kind != "param" or not chosen(name):
                continue
            values[name] = replace(value, home=self.home, shard=-(-value.nbytes // facts.world))
