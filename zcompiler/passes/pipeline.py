"""Pipelines: their text, their contracts, and running them with a check after each pass."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from zcompiler.errors import ZinfError
from zcompiler.passes.base import Facts, Pass, PassFailure
from zcompiler.passes.gather_params import GatherParams
from zcompiler.passes.keep_last_unit import KeepLastUnit
from zcompiler.passes.keep_reused import KeepReused
from zcompiler.passes.offload_activations import OffloadActivations
from zcompiler.passes.offload_grads import OffloadGrads
from zcompiler.passes.partition_params import PartitionParams
from zcompiler.passes.prefetch_reads import PrefetchReads
from zcompiler.passes.reduce_grads import ReduceGrads
from zcompiler.passes.release_params import ReleaseParams
from zcompiler.passes.trail_writes import TrailWrites
from zcompiler.schedule.graph import to_graph, to_schedule
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.render import render_problems
from zcompiler.schedule.sizes import format_bytes, parse_bytes
from zcompiler.schedule.verify import verify

PASSES: tuple[type[Pass], ...] = (
    PartitionParams,
    GatherParams,
    ReleaseParams,
    ReduceGrads,
    OffloadGrads,
    OffloadActivations,
    KeepLastUnit,
    KeepReused,
    TrailWrites,
    PrefetchReads,
)
_ITEM = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")


class PipelineError(ZinfError):
    """A pipeline's text names no pass or option that exists, or its passes do not go together."""


class PassError(ZinfError):
    """A pass left a schedule that breaks a rule. The message has the pass, the rules and the marked text."""

    def __init__(self, pass_name: str, message: str, schedule: Schedule) -> None:
        super().__init__(f"after pass {pass_name}: {message}")
        self.pass_name, self.schedule = pass_name, schedule


def parse_pipeline(spec: str) -> tuple[Pass, ...]:
    """The passes of `gather-params,prefetch-reads{bytes=2KiB}`. PipelineError names what exists instead."""
    known = {p.name: p for p in PASSES}
    passes: list[Pass] = []
    at = 0
    while spec[at:].strip():
        match = _ITEM.match(spec, at)
        if not match:
            raise PipelineError(
                f"cannot read {spec[at:]!r}: write passes as NAME or NAME{{OPTION=VALUE ...}}, a comma apart"
            )
        name, options = match.groups()
        if name not in known:
            raise PipelineError(f"no pass {name!r}; there are {', '.join(known)}")
        passes.append(_make(known[name], options or ""))
        at = match.end()
    return tuple(passes)


def print_pipeline(pipeline: Sequence[Pass]) -> str:
    """The canonical text: options in the order of the fields, defaults left out."""
    items = []
    for p in pipeline:
        options = [
            f"{f.name}={_print_option(f, getattr(p, f.name))}"
            for f in dataclasses.fields(p)  # type: ignore[arg-type]
            if f.default is dataclasses.MISSING or getattr(p, f.name) != f.default
        ]
        items.append(f"{p.name}{{{' '.join(options)}}}" if options else p.name)
    return ",".join(items)


def check_contracts(pipeline: Sequence[Pass]) -> None:
    """PipelineError when a pass stands before one it must follow, or beside one it conflicts with.

    A pass that is absent breaks no `after`: the text may have been through it already, and the verifier judges that.
    """
    names = [p.name for p in pipeline]
    for i, p in enumerate(pipeline):
        for other in p.after:
            if other in names[i + 1 :]:
                raise PipelineError(f"{p.name} stands before {other}; it must come after it: move {p.name} back")
        for other in p.conflicts:
            if other in names:
                raise PipelineError(f"{p.name} conflicts with {other}: leave one of them out")


def run_pipeline(
    schedule: Schedule,
    pipeline: Sequence[Pass],
    on_pass: Callable[[str, Schedule], None] | None = None,
    partial: bool = False,
    trial: bool = False,
) -> Schedule:
    """The schedule after all passes, verified. `on_pass` gets each pass's name and the schedule it left.

    Each pass must leave every rule whole except its own `leaves_open`; in the end none may be open, unless `partial`.
    A `trial` asks what would become of the schedule, over the limit or not: nothing is verified, and no op has its
    waits. Raises PipelineError before any pass runs if contracts are broken, PassError naming the pass that broke a
    rule."""
    check_contracts(pipeline)
    facts = Facts.of(schedule)
    graph = to_graph(schedule)
    for p in pipeline:
        try:
            p.apply(graph, facts)
        except PassFailure as error:
            raise PassError(p.name, str(error), schedule) from error
        if not trial:
            graph.lint()
            schedule = to_schedule(graph)
            _check(p.name, schedule, p.leaves_open)
            if on_pass:
                on_pass(p.name, schedule)
    if trial:
        return to_schedule(graph, waits=False)
    if not partial and (not pipeline or pipeline[-1].leaves_open):  # else the last check was as strict
        _check(pipeline[-1].name if pipeline else "(none)", schedule, frozenset())
    return schedule


def _check(name: str, schedule: Schedule, leaves_open: frozenset[str]) -> None:
    problems = [p for p in verify(schedule) if p.rule not in leaves_open]
    if problems:
        raise PassError(name, render_problems(schedule, problems), schedule)


def _make(kind: type[Pass], text: str) -> Pass:
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given: dict[str, object] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in fields or not equals:
            there = ", ".join(f"{n}={_OPTION_FORMS[str(f.type)]}" for n, f in fields.items()) or "none"
            raise PipelineError(f"{kind.name} has no option {word!r}; its options are: {there}")
        given[name] = _parse_option(kind.name, fields[name], value)
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in given]
    if missing:
        wanted = " ".join(f"{n}={_OPTION_FORMS[str(fields[n].type)]}" for n in missing)
        raise PipelineError(f"{kind.name} needs {{{wanted}}}")
    return kind(**given)


# Options are tier names, globs joined by +, or sizes; passes are written with postponed annotations, so a field's
# type is its text.
_OPTION_FORMS = {"str": "NAME", "tuple[str, ...]": "GLOB+GLOB", "int": "SIZE"}


def _parse_option(pass_name: str, field: dataclasses.Field[object], text: str) -> object:
    if not text:
        raise PipelineError(f"{pass_name}: {field.name}= is empty")
    if field.type == "int":
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise PipelineError(f"{pass_name}: {field.name}: {error}") from error
    return tuple(text.split("+")) if field.type == "tuple[str, ...]" else text


def _print_option(field: dataclasses.Field[object], value: object) -> str:
    if isinstance(value, int):
        return format_bytes(value)
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
