"""A whole training step as one program: a graph's forward and backward, and the update, done at once or late."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from zcompiler.schedule.flow import rest_place
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.simulate.program import DRAIN, FREE, HERE, MOVE, Line, Program, shifted
from zcompiler.schedule.words import UPDATE_LANE, phase_of

_PART = re.compile(r"(.+)\[\d+\]")


def stored_bytes(schedule: Schedule) -> int:
    """The largest gradient that a graph writes to the store: so much of its releases may trail behind its runs."""
    written = {op.value for _, op in schedule.ops() if op.kind == "write"}
    return max((v.nbytes for v in schedule.values if v.kind == "grad" and v.name in written), default=0)


def subgroup_bytes(schedule: Schedule) -> int:
    """The most bytes of parameters, gradients and states that a sub-group of an update has."""
    runs = (op for _, op in schedule.ops() if op.kind == "run")
    return max((sum(schedule.value(name).nbytes for name in op.reads) for op in runs), default=0)


def at_once(graph: Program, update: Program) -> Program:
    """Forward, backward, and then the update from its first to its last transfer.

    What rests in memory is in both schedules, and counted as the graph's says. Gradients and outputs go at the end.
    """
    lines = with_phases(graph)
    lines += shifted(update.lines, len(lines))
    return replace(graph, lines=tuple(lines + _left_over(lines)))


def late(graph: Program, update: Program) -> Program:
    """A step whose forward goes on with the update of the step before, and whose own update is left to the next.

    As in `training/late.py`: its first reads are under way before forward begins; a sub-group is updated, on the
    thread that computes, when forward first needs one of its unit, and the new values need no read then; before
    backward begins, all are, and before the next step's update begins, all are written. A gradient in memory is held
    until its sub-group is updated. Sub-groups belong to the bucket of their name, with or without `[number]`.
    """
    return _Late(graph, update).program()


def repeated(program: Program, times: int) -> Program:
    """The same again and again, so that what one step leaves over to the next counts in all but the first."""
    lines: list[Line] = []
    for _ in range(times):
        lines += shifted(program.lines, len(lines))
    return replace(program, lines=tuple(lines))


def with_phases(graph: Program) -> list[Line]:
    """The lines of a graph with the end of forward marked, where a backward follows, and then that of backward."""
    lines = list(graph.lines)
    last = max((i for i, line in enumerate(lines) if phase_of(line.region) == "fwd"), default=-1)
    if 0 <= last < len(lines) - 2:
        lines[last] = lines[last]._replace(mark="fwd")
        lines[-1] = lines[-1]._replace(mark="bwd")
    return lines


def _left_over(lines: list[Line]) -> list[Line]:
    """Frees what a step leaves behind: outputs, and gradients that have been used."""
    left: Counter[str] = Counter()
    for line in lines:
        left[line.tier] += -line.nbytes if line.what == FREE else line.nbytes
    return [Line(FREE, "", "", None, tier=tier, nbytes=size) for tier, size in left.items() if size]


class _Late:
    def __init__(self, graph: Program, update: Program) -> None:
        self.graph, self.update = graph, update
        self.lines: list[Line] = []
        self.at: dict[int, int] = {}  # of the update: line there -> line here
        self.written: dict[str, list[int]] = {}  # the writes of a bucket's new values, as lines here
        self.left = Counter(self._bucket(region.name) for region in update.schedule.regions)
        self.groups = self._groups()
        tier = update.schedule.compute_tier.name
        gradients = [v for v in update.schedule.values if v.kind == "grad" and v.home in (None, tier)]
        self.gradients = {v.name: v.nbytes for v in gradients}

    def program(self) -> Program:
        graph = self.graph
        first = next(self.groups, [])
        head = next((i for i, (_, line) in enumerate(first) if line.what == HERE), len(first))
        self._take(first[:head])
        self.rest: Iterator[list[tuple[int, Line]]] = iter([first[head:], *self.groups])
        here: dict[int, int] = {}
        for i, line in enumerate(with_phases(graph)):
            line = line._replace(waits=tuple(here[w] for w in line.waits))
            if line.region and phase_of(line.region) != "fwd":
                self._go_on()
            if line.op is not None and line.what in (HERE, MOVE):
                line = self._behind_update(line)
            here[i] = len(self.lines)
            self.lines.append(line)
        self._go_on()
        transfers = tuple(self.at[i] for i, line in enumerate(self.update.lines) if line.what == MOVE)
        self.lines.append(Line(DRAIN, "", "", None, transfers, mark=self.update.schedule.name))
        tier = graph.schedule.compute_tier.name
        at_rest = {**graph.at_rest, tier: graph.at_rest[tier] + sum(self.gradients.values())}
        return replace(graph, lines=tuple(self.lines + _left_over(self.lines)), at_rest=at_rest)

    def _behind_update(self, line: Line) -> Line:
        """Go on with the update as far as the line needs it; gives back what is then left for it to do."""
        op, schedule = line.op, self.graph.schedule
        assert op is not None
        if op.kind == "read" and schedule.value(op.value).kind == "param":
            if self.left[op.value]:
                self.lines.append(Line(HERE, UPDATE_LANE, line.region, None, tier=line.tier, nbytes=line.nbytes))
                self._go_on(op.value)
                return line._replace(what=HERE, seconds=0.0, nbytes=0, moved=0)
            return line._replace(waits=(*line.waits, *self.written.get(op.value, ())))
        needed = [name for name in op.reads if self.left[name] and self._rests_in_memory(name)]
        if needed:
            self.lines.append(Line(HERE, UPDATE_LANE, line.region, None, line.waits))
            for name in needed:
                self._go_on(name)
        return line

    def _rests_in_memory(self, name: str) -> bool:
        schedule = self.graph.schedule
        place = rest_place(schedule, schedule.value(name))
        return place is not None and place.tier == schedule.compute_tier.name

    def _go_on(self, bucket: str | None = None) -> None:
        """Update sub-groups in order until none of the bucket is left; None: all."""
        while self.left[bucket] if bucket is not None else self.left.total():
            self._take(next(self.rest))

    def _take(self, lines: list[tuple[int, Line]]) -> None:
        for i, line in lines:
            self.at[i] = len(self.lines)
            self.lines.append(line._replace(waits=tuple(self.at[w] for w in line.waits)))
            op = line.op
            assert op is not None
            if line.what == HERE:
                self.left[self._bucket(line.region)] -= 1
                for name in op.reads:
                    if name in self.gradients:
                        tier = self.graph.schedule.compute_tier.name
                        free = Line(FREE, UPDATE_LANE, line.region, None, tier=tier, nbytes=self.gradients[name])
                        self.lines.append(free)
            elif op.kind == "write" and self.update.schedule.value(op.value).kind == "param":
                self.written.setdefault(self._bucket(line.region), []).append(self.at[i])

    def _groups(self) -> Iterator[list[tuple[int, Line]]]:
        """The lines of each region of the update, with their places there."""
        found: dict[str, list[tuple[int, Line]]] = {}
        for i, line in enumerate(self.update.lines):
            if line.what != DRAIN:
                found.setdefault(line.region, []).append((i, line))
        yield from found.values()

    def _bucket(self, region: str) -> str:
        """`l0` of `update/l0` and of `update/l0[3]`."""
        name = region.split("/", 1)[1]
        part = _PART.fullmatch(name)
        known = any(v.name == name for v in self.graph.schedule.values)
        return name if known or part is None else part[1]
