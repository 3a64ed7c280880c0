"""The fixed words of the schedule language: lanes, op kinds, and which move joins which two tiers."""

from __future__ import annotations

from typing import NamedTuple

LANES = ("compute", "comm", "h2d", "d2h", "nvme_read", "nvme_write", "update")
UPDATE_LANE = "update"
RUN_LANES = ("compute", UPDATE_LANE)
COMM_LANE = "comm"
COMM_KINDS = ("all_gather", "reduce_scatter")

FORMS = ("full", "shard")
# The form an op of this kind starts from; only `release` says its form in the text.
FORM_OF = {
    "read": "shard",
    "write": "shard",
    "reload": "shard",
    "offload": "shard",
    "all_gather": "shard",
    "reduce_scatter": "full",
    "run": "full",
}
OP_KINDS = (*FORM_OF, "release")

# The tier without a bottom: what rests there is on disk, so it is neither counted nor limited.
STORE = "nvme"


class Move(NamedTuple):
    """One way of carrying bytes from a tier to its neighbour."""

    kind: str
    lane: str
    src: str
    dst: str


MOVES = (
    Move("read", "nvme_read", STORE, "host"),
    Move("reload", "h2d", "host", "device"),
    Move("offload", "d2h", "device", "host"),
    Move("write", "nvme_write", "host", STORE),
)


def phase_of(region: str) -> str:
    """`fwd` of `fwd/l0`."""
    return region.split("/", 1)[0]


def tiled_matmul(region: str) -> str | None:
    """`fwd/l0.up` of `fwd/l0.up/3`, one of its tiles; None of what is no tile."""
    matmul, _, number = region.rpartition("/")
    return matmul if number.isdecimal() and matmul != phase_of(region) else None
