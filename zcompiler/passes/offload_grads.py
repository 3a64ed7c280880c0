"""offload-grads: moves each gradient to its home once it is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass, chosen_by
from zcompiler.passes.rewrite import add_release, last_runs_of_grads, past_releases
from zcompiler.schedule.graph import add_op, header, kind_of, users_of
from zcompiler.schedule.model import Op


@dataclass(frozen=True)
class OffloadGrads(Pass):
    """Each gradient that matches `only` and not `keep` gets `home`, and, when that is not the compute tier, the moves
    there behind the op that completes it (the last run, or its reduce_scatter), each followed by the release of where
    it came from."""

    home: str
    only: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    name: ClassVar[str] = "offload-grads"
    after: ClassVar[tuple[str, ...]] = ("release-params", "reduce-grads")
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        route = facts.route(facts.compute, self.home)
        head = header(graph)
        chosen = chosen_by(self.only, self.keep)
        moved = {n for n, v in head.values.items() if v.kind == "grad" and chosen(n)}
        for name, value in head.values.items():
            if name in moved:
                head.values[name] = replace(value, home=self.home)
        for run, grads in last_runs_of_grads(graph):
            at = past_releases(run)
            for name, copy in grads:
                if name not in moved:
                    continue
                reduced = next((u for u in users_of(copy) if kind_of(u) == "reduce_scatter"), None)
                if reduced:
                    copy, at = reduced, past_releases(reduced)
                form = head.moved_form(name)
                for kind, lane, src, dst in route:
                    with graph.inserting_after(at):
                        node = add_op(graph, Op(lane, kind, name, "shard", src, dst), run.meta["region"], [copy])
                    at = add_release(graph, node, copy, form, src)
                    copy = node
