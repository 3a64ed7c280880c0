"""reduce-grads: sums each gradient over the ranks and keeps this rank's shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass
from zcompiler.passes.rewrite import add_release, last_runs_of_grads, past_releases
from zcompiler.schedule.graph import add_op, header, kind_of, users_of
from zcompiler.schedule.model import Op


@dataclass(frozen=True)
class ReduceGrads(Pass):
    """After the last run that writes or reads a gradient: a reduce_scatter, then a release of the full form.

    In a world of one rank it changes nothing."""

    name: ClassVar[str] = "reduce-grads"
    after: ClassVar[tuple[str, ...]] = ("release-params",)
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        if facts.world == 1:
            return
        values = header(graph).values
        for run, grads in last_runs_of_grads(graph):
            at = past_releases(run)
            for name, copy in grads:
                if any(kind_of(u) == "reduce_scatter" for u in users_of(copy)):
                    continue
                values[name] = replace(values[name], shard=-(-values[name].nbytes // facts.world))
                with graph.inserting_after(at):
                    node = add_op(graph, Op(facts.comm, "reduce_scatter", name), run.meta["region"], [copy])
                at = add_release(graph, node, copy, "full", facts.compute)
