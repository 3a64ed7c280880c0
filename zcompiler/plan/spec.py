"""The passes that carry a placement out, as the text of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from zcompiler.plan.plan import Placement
from zcompiler.schedule.sizes import format_bytes


def pipeline_of(
    placement: Placement,
    gradients: Mapping[str, str],
    compute: str,
    prefetch: int,
    activations: str = "",
    ahead: bool = True,
) -> str:
    """`gradients` maps gradient values to buckets; `activations`: the options of the pass that offloads them, empty
    for none; `ahead`: with the passes that trade memory for time."""
    params = _homes({bucket: homes.params for bucket, homes in placement.items()}, compute)
    grads = _homes({value: placement[bucket].grads for value, bucket in gradients.items()}, compute)
    spec = f"partition-params{{{params}}},gather-params,release-params,reduce-grads,offload-grads{{{grads}}}"
    if activations:
        spec += f",offload-activations{{{activations}}}"
    last = "trail-writes," if activations else ""
    last = f"keep-last-unit,keep-reused,{last}prefetch-reads{{bytes={format_bytes(prefetch)}}}"
    return f"{spec},{last}" if ahead else spec


def _homes(home: Mapping[str, str], compute: str) -> str:
    """`home=nvme`, and where values differ, the shorter of which of them (only=) and which not (keep=)."""
    moved = [v for v, tier in home.items() if tier != compute]
    if not moved:
        return f"home={compute}"
    tier = home[moved[0]]
    kept = [v for v in home if home[v] == compute]
    if not kept:
        return f"home={tier}"
    chosen = f"keep={'+'.join(kept)}" if len(kept) <= len(moved) else f"only={'+'.join(moved)}"
    return f"home={tier} {chosen}"
