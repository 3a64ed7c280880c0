"""offload-activations: what forward saves for backward rests in the store in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch.fx

from zcompiler.passes.base import Facts, Pass, chosen_by
from zcompiler.passes.rewrite import add_release, issue_order, past_releases, releases_of, runs_of
from zcompiler.schedule.graph import add_op, header, kind_of, op_nodes, op_of, region_nodes, users_of, value_of
from zcompiler.schedule.model import Op
from zcompiler.schedule.words import STORE, phase_of


@dataclass(frozen=True)
class OffloadActivations(Pass):
    """Each activation that a forward run makes and a backward run reads gets `home`; it moves there behind the last
    forward run that uses it and comes back before the first backward run of the region that does, and is released at
    either place.

    Chosen are those of at least `least` bytes, made in a region that matches `regions` (none given: any), whose name
    matches `only` (none given: any) and not `keep`. Left alone: what a backward run changes, what moves or is released
    in between already, and what the next run to compute reads again.
    """

    home: str
    least: int = 1
    regions: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    name: ClassVar[str] = "offload-activations"
    after: ClassVar[tuple[str, ...]] = ("gather-params", "release-params", "offload-grads")
    leaves_open: ClassVar[frozenset[str]] = frozenset({"budget"})

    def apply(self, graph: torch.fx.Graph, facts: Facts) -> None:
        out, back = facts.route(facts.compute, self.home), facts.route(self.home, facts.compute)
        if not out:
            return
        order = issue_order(graph)
        runs = runs_of(op_nodes(graph))
        first_runs = {region: runs_of(nodes)[:1] for region, nodes in region_nodes(graph)}
        head = header(graph)
        ends: dict[torch.fx.Node, torch.fx.Node] = {}  # a forward run -> the last line added behind it
        for copy, before, after, freed in self._chosen(graph, order, runs):
            name = value_of(copy)
            head.values[name] = replace(head.values[name], home=self.home)
            last, (first,) = before[-1], first_runs[after[0].meta["region"]]
            at, node = ends.get(last) or past_releases(last), copy
            for kind, lane, src, dst in out:
                with graph.inserting_after(at):
                    moved = add_op(graph, Op(lane, kind, name, "shard", src, dst), last.meta["region"], [node])
                at, node = add_release(graph, moved, node, "full", src), moved
            ends[last] = at
            for i, (kind, lane, src, dst) in enumerate(back):
                with graph.inserting_before(first):
                    moved = add_op(graph, Op(lane, kind, name, "shard", src, dst), first.meta["region"], [node])
                if i or src != STORE:
                    add_release(graph, moved, node, "full", src)
                node = moved
            for user in (*after, *freed):
                user.replace_input_with(copy, node)

    def _chosen(
        self, graph: torch.fx.Graph, order: dict[torch.fx.Node, int], runs: list[torch.fx.Node]
    ) -> Iterator[tuple[torch.fx.Node, list[torch.fx.Node], list[torch.fx.Node], list[torch.fx.Node]]]:
        """(the copy as forward leaves it, forward runs that touch it, backward runs that read it, its releases)."""
        values = header(graph).values
        in_region, chosen = chosen_by(self.regions, ()), chosen_by(self.only, self.keep)
        computing = [n for n in runs if op_of(n).reads]  # a run without operands stands for what is handed over
        following = dict(zip(computing, computing[1:], strict=False))
        made: dict[str, list[tuple[torch.fx.Node, torch.fx.Node]]] = {}
        for run in runs:
            for copy in run.users:
                if kind_of(copy) == "written" and values[value_of(copy)].kind == "act":
                    made.setdefault(value_of(copy), []).append((run, copy))
        for name, versions in made.items():
            maker, copy = versions[-1]
            if any(phase_of(run.meta["region"]) != "fwd" for run, _ in versions):
                continue
            users = sorted(users_of(copy), key=order.__getitem__)
            reads, freed = runs_of(users), releases_of(copy)
            before = [maker, *(u for u in reads if phase_of(u.meta["region"]) == "fwd")]
            after = [u for u in reads if phase_of(u.meta["region"]) == "bwd"]
            moves = len(reads) + len(freed) < len(users)
            if moves or not after or not freed or freed[0] is not users[-1] or following.get(before[-1]) is after[0]:
                continue
            fits = values[name].nbytes >= self.least and in_region(versions[0][0].meta["region"])
            if fits and chosen(name):
                yield copy, before, after, freed
