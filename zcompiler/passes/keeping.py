"""Keeping a gathered parameter from one region to a later one, instead of gathering it twice."""

from __future__ import annotations

from collections.abc import Iterator

import torch.fx

from zcompiler.passes.base import Facts
from zcompiler.passes.rewrite import GATHER_KINDS, issue_order, releases_of
from zcompiler.schedule.flow import form_bytes
from zcompiler.schedule.graph import header, kind_of, to_schedule, users_of, value_of
from zcompiler.schedule.memory import memory


def gathered(graph: torch.fx.Graph, nodes: list[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """The copies of parameters that a region gathers for its runs and that are released, there or later."""
    values = header(graph).values
    for node in nodes:
        if kind_of(node) not in GATHER_KINDS or values[value_of(node)].kind != "param":
            continue
        if releases_of(node) and any(kind_of(u) == "run" for u in users_of(node)):
            yield node


class Keeping:
    """Keeps parameters in one graph, and knows what its compute tier then holds at each op: it is counted once."""

    def __init__(self, graph: torch.fx.Graph, facts: Facts) -> None:
        self._graph = graph
        self._budget = next(t.budget for t in facts.tiers if t.compute)
        self._at = issue_order(graph)
        if self._budget is not None:
            self._during = memory(to_schedule(graph, waits=False)).during[facts.compute]

    def keep(self, kept: torch.fx.Node, copy: torch.fx.Node) -> bool:
        """Let what uses `copy`, a later gather of the same value, use `kept`; whether that was possible.

        It is not if the value changed at home in between, or if the compute tier has no room at some op in between."""
        chain = _chain(copy)
        if _home(kept) is not _home(copy):
            return False
        dropped = [*releases_of(kept), *(r for n in chain if n is not copy for r in releases_of(n)), *chain]
        if not self._take(kept, copy, chain, dropped):
            return False
        copy.replace_all_uses_with(kept)
        for node in dropped:
            self._graph.erase_node(node)
        return True

    def _take(
        self, kept: torch.fx.Node, copy: torch.fx.Node, chain: list[torch.fx.Node], dropped: list[torch.fx.Node]
    ) -> bool:
        """Count what is held more: `kept` from where it would go to where `copy` would come, without the shards that
        `copy` would be gathered from."""
        if self._budget is None:
            return True
        value, at = header(self._graph).values[value_of(copy)], self._at
        held, more = self._during.copy(), slice(at[releases_of(kept)[0]], at[copy])
        held[more] += value.nbytes
        for shard in chain[1:2] if kind_of(copy) == "all_gather" else ():
            for release in releases_of(shard):
                held[at[shard] : at[release]] -= form_bytes(value, "shard")
        held[[at[node] for node in dropped]] = 0
        if (held[more] > self._budget).any():
            return False
        self._during = held
        return True


def _chain(copy: torch.fx.Node) -> list[torch.fx.Node]:
    """The gather ops that end in `copy`, last first."""
    chain = []
    at = copy
    while kind_of(at) in GATHER_KINDS:
        chain.append(at)
        source = at.args[0]
        assert isinstance(source, torch.fx.Node)
        at = source
    return chain


def _home(copy: torch.fx.Node) -> object:
    """What the first gather op of `copy` reads: the value at home, a different node after each write."""
    return _chain(copy)[-1].args[0]
