"""`zcompiler.trace`: takes note of what all compiled models do, and saves it beside what was planned."""

from __future__ import annotations

import json
import platform
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from runtime_ext.recording import Recorder
from zcompiler.errors import ZinfError
from zcompiler.machine.choose import Chosen
from zcompiler.plan.plan import Plan, describe
from zcompiler.training.predicted import Known
from zcompiler.training.registry import running_trace, set_trace
from zcompiler.training.session import Session, sessions
from zcompiler.training.trace.activity import PHASES, Group
from zcompiler.training.trace.chrome import aligned
from zcompiler.training.trace.chrome import trace as chrome_trace
from zcompiler.training.trace.measured import measured
from zcompiler.training.trace.planned import planned
from zcompiler.training.trace.resting import resting
from zcompiler.training.trace.steps import Steps, Window

FORMAT = 1  # of what a file has under the key zinf


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one session did, and what was known of it when the recording ended."""

    recorder: Recorder
    known: Known
    machine: Chosen
    plans: dict[str, Plan]
    memory: int
    fallbacks: tuple[str, ...]


class Recorded:
    """What all models that zinf compiled do inside `with`; then `save` it. Made by `zcompiler.trace`."""

    def __init__(self, window: Window | None = None, completed: Callable[[Recorded], None] | None = None) -> None:
        """Only the steps of `window`, if there is one; `completed` is called as soon as they are over."""
        self._steps = Steps(window)
        self._completed = completed
        self._recorders: dict[Session, Recorder] = {}
        self._taken: list[_Taken] = []
        self._recording = False
        self.complete = False  # whether the whole window was recorded
        self._began = self._ended = 0.0
        self._when = ""

    def __enter__(self) -> Self:
        if running_trace() is not None:
            raise ZinfError("a trace is running already, and there can be one at a time: leave its with block first")
        set_trace(self)
        self._turn(self._steps.starts())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        set_trace(None)
        self._end()

    def save(self, path: str | Path) -> None:
        """Write it as a trace (JSON) that ui.perfetto.dev and chrome://tracing open, and `zinf report` makes a page of.

        First waits for the transfers that were begun inside. ZinfError while it is being recorded, and if no graph of
        zinf ran. OSError if the file cannot be written.
        """
        if self._recording:
            raise ZinfError("the trace is being recorded: save it behind its with block")
        Path(path).write_text(json.dumps(self.as_json(), separators=(",", ":")), encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """The content of the file."""
        processes: list[tuple[int, str, Group]] = []
        about = []
        for number, (taken, group) in enumerate(self._groups()):
            pid, which = 2 * number + 1, f" ({number + 1})" if number else ""
            processes.append((pid, f"measured{which}", group))
            own: dict[str, Any] = {
                "pid": pid,
                "steps": group.steps,
                "planned": None,
                "planned_steps": (),
                "why_not": "",
            }
            try:
                plan = aligned(planned(taken.known, taken.machine.machine, _used(group)), group)
                processes.append((pid + 1, f"planned{which}: {taken.machine.machine.name}", plan))
                own |= {"planned": pid + 1, "planned_steps": plan.steps}
            except (ZinfError, LookupError, MemoryError) as error:
                own["why_not"] = str(error)
            about.append({**own, **_about(taken)})
        if not processes:
            raise ZinfError(
                "nothing was recorded: no graph compiled with backend zinf ran inside the trace"
                if self._steps.window is None
                else f"nothing was recorded: {self.steps} steps were made, and step "
                f"{self._steps.window.first} was to be the first"
            )
        first = self._steps.window.first if self._steps.window is not None else 1
        head = {"format": FORMAT, "when": self._when, "versions": _versions(), "first": first, "sessions": about}
        return chrome_trace(processes, head)

    @property
    def steps(self) -> int:
        """How many steps ended since the `with` began, recorded or not."""
        return len(self._steps.ends)

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return not self._taken

    def joined(self, session: Session) -> None:
        """Told of a session that was made meanwhile."""
        if self._recording:
            self._attach(session)

    def backward_ended(self) -> None:
        """Told after each backward of a graph."""
        self._turn(self._steps.backward_ended(time.perf_counter()))

    def optimizer_stepped(self) -> None:
        """Told after each step of an optimizer."""
        self._turn(self._steps.optimizer_stepped(time.perf_counter()))

    def _turn(self, turns: tuple[str, ...]) -> None:
        for turn in turns:
            if turn == "begin":
                self._recording = True
                self._began, self._when = time.perf_counter(), datetime.now().isoformat(timespec="seconds")
                for session in sessions():
                    self._attach(session)
            elif turn == "drop":
                self._end()
                self._taken.clear()
                self.complete = False
            elif self._recording:
                self._end()
                self.complete = True
                if self._completed is not None:
                    self._completed(self)

    def _attach(self, session: Session) -> None:
        recorder = Recorder(session.compute_tier, _resting(weakref.ref(session)))
        session.runtime.recorder = self._recorders[session] = recorder

    def _end(self) -> None:
        if not self._recording:
            return
        self._recording, self._ended = False, time.perf_counter()
        for session, recorder in self._recorders.items():
            session.runtime.recorder = None
            if recorder.phases or recorder.spans:
                known = Known.of(session)
                fallbacks = tuple(session.fallbacks)
                limit = session.options.memory
                self._taken.append(_Taken(recorder, known, session.machine, dict(session.plans), limit, fallbacks))
        self._recorders.clear()

    def _groups(self) -> Iterator[tuple[_Taken, Group]]:
        ends = [at for at in self._steps.ends if self._began < at <= self._ended]
        for taken in self._taken:
            taken.recorder.wait()
            yield taken, measured(taken.recorder, self._began, self._ended, ends)


def trace() -> Recorded:
    """Record what all models that zinf compiled do: `with zcompiler.trace() as recorded: ...`, then
    `recorded.save("step.json")`.

    Changes no number and waits for nothing. What raises inside goes on to the caller, and what was recorded up to there
    can be saved. Of a late update it has what is done inside. ZinfError if a trace is running already.
    """
    return Recorded()


def _resting(session: weakref.ref[Session]) -> Callable[[], int]:
    def ask() -> int:
        found = session()
        return resting(found) if found is not None else 0

    return ask


def _used(group: Group) -> list[list[str]]:
    """The schedules that each step went through, in order of first use."""
    used: list[dict[str, None]] = [{} for _ in group.steps]
    phases = (a for a in group.activities if a.track == PHASES and a.step < len(used))
    for a in sorted(phases, key=lambda a: a.begin):
        used[a.step][str(a.details["schedule"])] = None
    return [list(names) for names in used]


def _about(taken: _Taken) -> dict[str, Any]:
    plans = {
        name: {
            "homes": describe(plan.placement),
            "prefetch": plan.prefetch,
            "pipeline": plan.pipeline,
            "peak": dict(plan.peak),
            "least": plan.least,
            "reasons": list(plan.reasons),
        }
        for name, plan in taken.plans.items()
    }
    return {
        "machine": str(taken.machine),
        "memory": taken.memory,
        "late": taken.known.is_late,
        "schedules": {name: str(schedule) for name, schedule in taken.known.schedules.items()},
        "plans": plans,
        "fallbacks": list(taken.fallbacks),
    }


def _versions() -> dict[str, str]:
    return {"zinf": version("zinf"), "torch": torch.__version__, "python": platform.python_version()}
