"""Plans as a JSON file, in and out: what was decided for each graph, to be read, kept, and given back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from zcompiler.options import ACTIVATIONS, Activations, OptionError, Options
from zcompiler.plan.plan import KINDS, UNCUT, Homes, Placement, Plan
from zcompiler.schedule.sizes import format_bytes, parse_bytes

VERSION = 1
FORMS = ("plain", UNCUT, "rows", "low")
_KEY = "zinf-plan"

Wanted = TypeVar("Wanted")


@dataclass(frozen=True, slots=True)
class MadeFor:
    """What a plan was made for, besides the model: if it is the same, so is the plan."""

    memory: str
    machine: str
    compute: str
    optimizer: str
    late: bool
    master: str | None

    @staticmethod
    def of(options: Options, machine: str, compute: str) -> MadeFor:
        memory = format_bytes(options.memory)
        return MadeFor(memory, machine, compute, options.optimizer, options.late, options.master)

    def __str__(self) -> str:
        return f"memory={self.memory} on {self.machine}"


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """The decisions about one graph; `peak` and `taken` in bytes are what they came to when they were made."""

    trains: bool
    form: str
    placement: Placement
    prefetch: int
    activations: Activations
    tile: tuple[tuple[str, int], ...]
    pipeline: str
    peak: Mapping[str, int]
    taken: int
    reasons: tuple[str, ...]

    def is_repeated_by(self, plan: Plan) -> bool:
        """Whether a plan made of these decisions comes to the same."""
        return (plan.pipeline, plan.peak, plan.taken) == (self.pipeline, self.peak, self.taken)


@dataclass(frozen=True, slots=True)
class PlanFile:
    """What a file says; `where` is how errors call it."""

    where: str
    made_for: MadeFor
    graphs: Mapping[str, GivenPlan]


def format_plans(plans: Mapping[str, Plan], made_for: MadeFor) -> str:
    """The text of a file with these plans, by graph: equal plans give equal bytes."""
    document = {
        _KEY: VERSION,
        "made_for": asdict(made_for),
        "graphs": {name: _written(plan) for name, plan in plans.items()},
    }
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def given_plans(options: Options) -> PlanFile | None:
    """The plans that the options name. OptionError where the file is none, or of another version."""
    if options.plan is None:
        return None
    return parse_plans(options.plan.text, f'option "plan": {options.plan.path}')


def parse_plans(text: str, where: str) -> PlanFile:
    """What `format_plans` wrote. OptionError naming `where`, and what is wrong."""
    try:
        raw = json.loads(text)
    except ValueError as error:  # no JSON, or numbers that no int can take
        raise OptionError(f"{where} is not JSON ({error}): give a plan.json that zinf has written") from error
    version = raw.get(_KEY) if isinstance(raw, dict) else None
    if version is None:
        raise OptionError(f'{where} has no "{_KEY}": give a plan.json that zinf has written')
    if version != VERSION:
        raise OptionError(
            f"{where} is a plan of version {version!r} and this zinf reads version {VERSION}: make it anew by "
            "`zinf dump --output FOLDER`, or leave the option out"
        )
    top = _Table(raw, where)
    made_for = top.table("made_for")
    made = MadeFor(
        made_for.get("memory", str), made_for.get("machine", str), made_for.get("compute", str),
        made_for.get("optimizer", str), made_for.get("late", bool), made_for.get("master", str, None),
    )  # fmt: skip
    graphs = top.table("graphs")
    return PlanFile(where, made, MappingProxyType({name: _read(graphs.table(name)) for name in graphs.raw}))


def _count(table: _Table, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        table.refuse(f"a count of tiles is {value!r}")
    return value


def _written(plan: Plan) -> dict[str, Any]:
    return {
        "trains": plan.trains,
        "form": plan.form,
        "placement": {unit: str(homes) for unit, homes in plan.placement.items()},
        "prefetch": format_bytes(plan.prefetch),
        "activations": [list(rule) for rule in plan.activations.rules],
        "tile": [list(rule) for rule in plan.tile],
        "pipeline": plan.pipeline,
        "peak": {tier: format_bytes(size) for tier, size in plan.peak.items()},
        "taken": format_bytes(plan.taken),
        "reasons": list(plan.reasons),
    }


def _read(table: _Table) -> GivenPlan:
    placement = table.table("placement")
    rules = tuple(table.pairs("activations"))
    for _, choice in rules:
        if choice not in ACTIVATIONS or choice == "auto":
            table.refuse(f"activations cannot be {choice!r}")
    form = table.get("form", str)
    if form not in FORMS:
        table.refuse(f"its form is {form!r} and none of {', '.join(FORMS)}")
    reasons = table.get("reasons", list)
    return GivenPlan(
        trains=table.get("trains", bool),
        form=form,
        placement={unit: _homes(placement, unit) for unit in placement.raw},
        prefetch=table.size("prefetch"),
        activations=Activations(rules),
        tile=tuple((name, _count(table, n)) for name, n in table.pairs("tile")),
        pipeline=table.get("pipeline", str),
        peak={tier: table.table("peak").size(tier) for tier in table.table("peak").raw},
        taken=table.size("taken"),
        reasons=tuple(map(str, reasons)),
    )


def _homes(table: _Table, unit: str) -> Homes:
    """Of `params=host grads=host optimizer=nvme`."""
    found = dict(part.partition("=")[::2] for part in table.get(unit, str).split())
    if found.keys() != set(KINDS):
        table.refuse(f'"{unit}" is {table.raw[unit]!r} and wants {" ".join(f"{kind}=TIER" for kind in KINDS)}')
    return Homes(**found)


_MISSING: Any = object()


class _Table:
    """An object of the file; asks for what has to be there, and refuses with its place."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw, self._where = raw, where

    def get(self, key: str, kind: type[Wanted], otherwise: Any = _MISSING) -> Any:
        found = self.raw.get(key, _MISSING)
        if otherwise is not _MISSING and found is otherwise:
            return otherwise
        if not isinstance(found, kind):
            has = "is missing" if found is _MISSING else f"is {found!r}"
            self.refuse(f'"{key}" {has} and wants {kind.__name__}')
        return found

    def table(self, key: str) -> _Table:
        return _Table(self.get(key, dict), f"{self._where}, {key}")

    def size(self, key: str) -> int:
        text = self.get(key, str)
        try:
            return parse_bytes(text)
        except ValueError as error:
            self.refuse(f'"{key}": {error}')

    def pairs(self, key: str) -> list[tuple[str, Any]]:
        found = self.get(key, list)
        for pair in found:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                self.refuse(f'"{key}" has {pair!r}, which is no pair of a name and what holds for it')
        return [(name, what) for name, what in found]

    def refuse(self, what: str) -> NoReturn:
        raise OptionError(f"{self._where}: {what}; give a plan.json that zinf has written")
