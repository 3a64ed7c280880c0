"""Whether a plan that the user gives is one for the graph at hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from zcompiler.machine.parts import Parts
from zcompiler.options import OptionError
from zcompiler.plan.file import GivenPlan
from zcompiler.plan.plan import KINDS
from zcompiler.stages.form import Form

_NAMED = 3  # of units that an error names


def check_given(given: GivenPlan, form: Form, known: Mapping[str, Mapping[str, str]], parts: Parts, where: str) -> None:
    """OptionError, beginning with `where`, if its units are not those of the graph or cannot rest where it says.

    `known` are the homes, by bucket and kind, that earlier graphs chose.
    """
    if given.trains != (form.captured.backward is not None):
        made, here = ("trains", "only evaluates") if given.trains else ("only evaluates", "trains")
        raise OptionError(f"{where}: this plan {made} and the graph {here}: {_REMEDY}")
    units = {bucket.name for bucket in form.buckets}
    wrong = []
    if more := sorted(given.placement.keys() - units):
        wrong.append(f"{_some(more, len(given.placement))} of the file are not in the graph")
    if less := sorted(units - given.placement.keys()):
        wrong.append(f"{_some(less, len(units))} of the graph are not in the file")
    if wrong:
        raise OptionError(f"{where}: {', and '.join(wrong)}: {_REMEDY}")
    tiers = parts.compute, parts.store
    for bucket in form.buckets:
        homes = asdict(given.placement[bucket.name])
        bad = next((f"{kind} in {tier}" for kind, tier in homes.items() if tier not in tiers), None)
        if bad is not None:
            raise OptionError(f"{where}: {bucket.name} has {bad}; there are {' and '.join(tiers)}")
        in_parts = bucket.tile is not None or bucket.has_tiles or bucket.low is not None
        if in_parts and homes["params"] != parts.store:
            raise OptionError(
                f"{where}: {bucket.name} has params in {homes['params']}, and tiles and 16-bit copies are made of what "
                f"rests in {parts.store}: put them there"
            )
        decided = known[bucket.name]
        if len(decided) == len(KINDS) and decided != homes:
            rests = " ".join(f"{kind}={tier}" for kind, tier in decided.items())
            raise OptionError(
                f"{where}: {bucket.name} is to rest as {given.placement[bucket.name]}, but graphs before it have put "
                f"it to {rests}: {_REMEDY}"
            )


_REMEDY = "give a plan of this model, made by calling it in the same order, or leave out option plan"


def _some(names: Collection[str], of: int) -> str:
    few = ", ".join(list(names)[:_NAMED])
    units = "unit" if len(names) == 1 else "units"
    return f"{len(names)} {units} ({few}{', ...' if len(names) > _NAMED else ''}) of {of}"
