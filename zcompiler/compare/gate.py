"""Whether a step has become worse than it was, and by which op."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from zcompiler.compare.because import because
from zcompiler.compare.metrics import Metric
from zcompiler.compare.sides import Compared
from zcompiler.errors import BadInput, did_you_mean

# How much a metric may rise, as a part of what it was. Bytes, peaks and counts follow from the text alone; times come
# from a simulation, in which a small change here and there is nobody's fault, and what was measured comes from a
# machine that may be busy.
TOLERANCES: Mapping[str, Fraction] = {
    "bytes": Fraction(0),
    "peak": Fraction(0),
    "exposed": Fraction(2, 100),
    "counts": Fraction(0),
    "measured": Fraction(1, 2),
}
WORSE, BETTER, WITHIN, SAME, SHOWN = "worse", "better", "within", "same", "shown"
_TOLERANCE = re.compile(r"([a-z]+)=([0-9]+(?:\.[0-9]+)?)%")


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric: what it was, is, and may be (None where it is only shown). `verdict`: worse (it rose by more than it
    may), better (it fell by more than that), within, same, or shown (not judged). `because` names the op where it is
    worse."""

    metric: Metric
    before: int | None
    after: int | None
    allowed: int | None
    verdict: str
    because: str = ""


def judge(compared: Compared, tolerances: Mapping[str, Fraction] = TOLERANCES) -> list[Finding]:
    """Every metric of both sides with its verdict. Not judged is what one side does not know, how long a step takes
    (what makes it longer is), and exposed time where the step does not take longer for it: it computes less then."""
    found = []
    for metric in compared.metrics:
        before, after = compared.before.get(metric), compared.after.get(metric)
        part = tolerances.get(metric.kind)
        if part is None or before is None or after is None or (metric.kind == "exposed" and _hidden(metric, compared)):
            found.append(Finding(metric, before, after, None, SHOWN))
            continue
        room = int(before * part)
        verdict = WORSE if after > before + room else BETTER if after < before - room else WITHIN
        verdict = SAME if after == before else verdict
        why = because(metric, compared) if verdict == WORSE else ""
        found.append(Finding(metric, before, after, before + room, verdict, why))
    return found


def _hidden(exposed: Metric, compared: Compared) -> bool:
    step = Metric("step", exposed.of)
    longer = compared.after[step] > compared.before[step]
    return compared.after[exposed] > compared.before[exposed] and not longer


def parse_tolerances(texts: Iterable[str]) -> dict[str, Fraction]:
    """`bytes=1%` and the like on top of the usual ones. BadInput says what can be named and how."""
    found = dict(TOLERANCES)
    for text in texts:
        match = _TOLERANCE.fullmatch(text)
        name = match[1] if match else text.partition("=")[0]
        if match is None or name not in TOLERANCES:
            hint = "" if name in TOLERANCES else did_you_mean(name, TOLERANCES)
            known = ", ".join(f"{kind}={float(part):.0%}" for kind, part in TOLERANCES.items())
            raise BadInput(f"--tolerance {text!r}{hint}: write KIND=PERCENT%, such as bytes=1%; without it: {known}")
        found[name] = Fraction(match[2]) / 100
    return found
