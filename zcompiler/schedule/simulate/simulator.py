"""The simulator: when each line of a program starts and ends. There is no other, for plans as for what is printed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf

from zcompiler.schedule.memory import event_name
from zcompiler.schedule.model import Region
from zcompiler.schedule.simulate.program import FREE, HERE, MOVE, Line, Program
from zcompiler.schedule.simulate.timeline import Timeline, Wait
from zcompiler.schedule.sizes import format_bytes


def simulate(program: Program, shared: Mapping[str, float] | None = None) -> Timeline:
    """What happens when: O(lines).

    Lines are issued in order on one thread, which also computes. Lanes are queues beside it. An allocation that does
    not fit waits for what was released, the oldest first. `shared` names the lanes that are one device: while two of
    them work, each goes on at that part of its own speed; none given, they do not slow each other.
    MemoryError when an allocation does not fit although nothing is left to wait for.
    """
    return _Run(program, shared or {}).run()


class _Run:
    def __init__(self, program: Program, shared: Mapping[str, float]) -> None:
        self.program, self.lines = program, program.lines
        self.now = 0.0
        self.start = [0.0] * len(self.lines)
        self.end = [inf] * len(self.lines)  # inf: not known yet
        self.issued = [0.0] * len(self.lines)
        self.lanes = _Lanes(self, shared)
        self.in_use = dict(program.at_rest)
        self.peak = dict(program.at_rest)
        self.frees: list[Line] = []  # released and still in use
        self.waits: list[Wait] = []
        self.marks: list[tuple[str, float]] = []

    def run(self) -> Timeline:
        start, end = self.start, self.end
        for i, line in enumerate(self.lines):
            what = line.what
            if what == FREE:
                self.issued[i] = start[i] = self.now
                if line.nbytes:
                    self._free(i, line)
            elif what == MOVE:
                if line.nbytes:
                    self._alloc(i, line, line.nbytes)
                self.issued[i] = self.now
                self.lanes.submit(i, line)
                # As if all at once: who waits for the transfer soon has nothing to compute, and waits so much less.
                self.now += line.slowing
            else:
                for other in line.waits:
                    if end[other] > self.now:
                        self._wait(i, other, "use" if what == HERE else "end")
                if line.nbytes or line.work:
                    self._alloc(i, line, line.nbytes + line.work)
                    self.in_use[line.tier] -= line.work
                self.issued[i] = start[i] = self.now
                self.now += line.seconds
                end[i] = self.now
            if line.mark:
                self.marks.append((line.mark, self.now))
        self.lanes.advance(inf)
        for i, line in enumerate(self.lines):
            if line.what == FREE:
                end[i] = max([start[i], *(end[w] for w in line.waits)])
        return Timeline(
            self.program, self.issued, start, end, self.now, tuple(self.waits), tuple(self.marks), self.peak
        )

    def _wait(self, waiter: int, other: int, why: str) -> None:
        """Go on when the line `other` is done."""
        end = self.end[other]
        if end == inf:
            self.lanes.advance(inf, other)
            end = self.end[other]
        if end > self.now:
            self.waits.append(Wait(waiter, other, end - self.now, why))
            self.now = end

    def _alloc(self, i: int, line: Line, nbytes: int) -> None:
        tier = line.tier
        if self.frees:
            self._reap()
        budget = self.program.budgets[tier]
        while budget is not None and self.in_use[tier] + nbytes > budget:
            oldest = next((free for free in self.frees if free.tier == tier), None)
            if oldest is None:
                raise MemoryError(self._refusal(line, nbytes, budget))
            self._wait_for_users(i, oldest, "room")
        self.in_use[tier] += nbytes
        if self.in_use[tier] > self.peak[tier]:
            self.peak[tier] = self.in_use[tier]

    def _free(self, i: int, line: Line) -> None:
        if self._over(line):
            self.in_use[line.tier] -= line.nbytes
            return
        self.frees.append(line)
        if line.lag is not None:
            self._reap()
            while sum(free.nbytes for free in self.frees) > line.lag:
                self._wait_for_users(i, self.frees[0], "lag")

    def _wait_for_users(self, waiter: int, free: Line, why: str) -> None:
        for other in free.waits:
            self._wait(waiter, other, why)
        self._reap()

    def _over(self, free: Line) -> bool:
        """Whether nobody uses the memory any more."""
        for other in free.waits:
            if self.end[other] == inf:
                self.lanes.advance(self.now)
            if self.end[other] > self.now:
                return False
        return True

    def _reap(self) -> None:
        left = []
        for free in self.frees:
            if self._over(free):
                self.in_use[free.tier] -= free.nbytes
            else:
                left.append(free)
        self.frees = left

    def _refusal(self, line: Line, nbytes: int, budget: int) -> str:
        event = event_name(Region(line.region, ()), line.op) if line.op is not None else f"the update in {line.region}"
        held = self.in_use[line.tier]
        return (
            f"{event} allocates {format_bytes(nbytes)} in {line.tier}, where {format_bytes(held)} of "
            f"{format_bytes(budget)} are held: raise the memory of {line.tier} to {format_bytes(held + nbytes)}"
        )


class _Lanes:
    """The queues. What a line on a lane of its own takes is known when it is issued; lines on shared lanes, and those
    that wait for them, are followed in the order of time, and only as far as somebody has to know."""

    def __init__(self, run: _Run, shared: Mapping[str, float]) -> None:
        self.lines, self.issued, self.start, self.end = run.lines, run.issued, run.start, run.end
        self.shared = shared
        self.queues: dict[str, deque[int]] = {}
        self.running = 0  # lines in queues
        self.quiet = 0.0  # before this moment nothing happens to them
        self.free_at: dict[str, float] = {}
        self.work: dict[str, _Working] = {}  # by shared lane

    def submit(self, i: int, line: Line) -> None:
        lane, end = line.lane, self.end
        if lane not in self.shared and not self.queues.get(lane):
            begin = max(self.issued[i], self.free_at.get(lane, 0.0))
            for other in line.waits:
                begin = max(begin, end[other])
            if begin < inf:
                self.start[i] = begin
                self.free_at[lane] = end[i] = begin + line.seconds
                return
        self.queues.setdefault(lane, deque()).append(i)
        self.running += 1
        self.quiet = 0.0

    def advance(self, until: float, target: int = -1) -> None:
        """Follow the lanes to `until`, or until the line `target` is done."""
        while self.running and self.quiet <= until:
            at, lane, begins = inf, "", False
            for name, queue in self.queues.items():
                if not queue:
                    continue
                working = self.work.get(name)
                when = working.ends if working is not None else self._ready(name, queue[0])
                if when < at:
                    at, lane, begins = when, name, working is None
            if at > until or at == inf:
                self.quiet = at
                return
            if begins:
                self._begin(lane, self.queues[lane][0], at)
            else:
                done = self._finish(lane, at)
                if done == target:
                    return

    def _ready(self, lane: str, i: int) -> float:
        when = max(self.issued[i], self.free_at.get(lane, 0.0))
        for other in self.lines[i].waits:
            when = max(when, self.end[other])
        return when

    def _begin(self, lane: str, i: int, at: float) -> None:
        self.start[i] = at
        self.work[lane] = _Working(at, self.lines[i].seconds)
        if lane in self.shared:
            self._change_speeds(at)

    def _finish(self, lane: str, at: float) -> int:
        i = self.queues[lane].popleft()
        self.running -= 1
        self.free_at[lane] = self.end[i] = at
        del self.work[lane]
        if lane in self.shared:
            self._change_speeds(at)
        return i

    def _change_speeds(self, at: float) -> None:
        busy = [lane for lane in self.work if lane in self.shared]
        for lane in busy:
            self.work[lane].go_on(at, self.shared[lane] if len(busy) > 1 else 1.0)


class _Working:
    """What a lane is at: `left` seconds of it at full speed, as of `since`."""

    def __init__(self, since: float, seconds: float) -> None:
        self.since, self.left, self.speed = since, seconds, 1.0
        self.ends = since + seconds

    def go_on(self, at: float, speed: float) -> None:
        if speed != self.speed:
            self.left = max(0.0, self.left - (at - self.since) * self.speed)
            self.since, self.speed = at, speed
            self.ends = at + self.left / speed
