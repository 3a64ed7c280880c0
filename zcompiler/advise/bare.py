"""What the text of a schedule alone can tell. There is no model to plan again, so what may help is said, not tried."""

from __future__ import annotations

from collections.abc import Iterator

from zcompiler.advise import explained as kinds
from zcompiler.advise.explained import Explained, Peak
from zcompiler.advise.homes import activations_of, groups_of
from zcompiler.advise.peaks import peaks_of
from zcompiler.advise.waits import Part, step_time
from zcompiler.compare.numbers import size
from zcompiler.compare.times import has_lanes, timeline
from zcompiler.machine.machine import Machine
from zcompiler.schedule.model import Schedule
from zcompiler.schedule.words import UPDATE_LANE

LARGE = 0.2  # of a peak: less is not worth a hint
_HINTS = {
    kinds.AT_REST: "let more parameters rest on nvme (place params=nvme)",
    kinds.GATHERED: "read less ahead (prefetch), or compute with the largest weights in tiles (tile)",
    kinds.GRADIENTS: "let gradients rest on nvme (place grads=nvme)",
    kinds.STATES: "let optimizer states rest on nvme (place optimizer=nvme)",
    kinds.ACTIVATIONS: "let activations go to nvme or be computed again (activations), or use a smaller batch",
    kinds.OUTPUTS: "return less from the model, or tile the projection that makes its logits (tile)",
    kinds.TEMPORARIES: "use a smaller batch, or compute what runs there in tiles (tile)",
}


def explain_schedule(schedule: Schedule, machine: Machine) -> Explained:
    """A schedule that keeps the verifier's rules, with its times on a machine as far as its text tells them; none where
    the machine lacks one of its lanes."""
    peaks = peaks_of(schedule)
    step = None
    if has_lanes(machine, schedule):
        estimated = any(op.kind == "run" and op.lane != UPDATE_LANE for _, op in schedule.ops())
        step = step_time([Part(timeline(schedule, machine))], [schedule], machine.name, estimated=estimated)
    compute = next(peak for peak in peaks if peak.tier == schedule.compute_tier.name)
    return Explained(
        f"The schedule {schedule.name}",
        groups_of([schedule]),
        activations_of([schedule]),
        peaks=peaks,
        step=step,
        hints=tuple(_hints(compute)),
    )


def _hints(peak: Peak) -> Iterator[str]:
    for holding in peak.holdings:
        if holding.nbytes >= LARGE * peak.nbytes:
            yield f"{size(holding.nbytes)} of the peak are {holding.kind}: {_HINTS[holding.kind]}"
