"""All parts of a machine on a virtual clock: a schedule and rates in, a timeline, exposed times and peaks out."""

from runtime_ext.virtual.parts import (
    VirtualArena,
    VirtualClock,
    VirtualEvent,
    VirtualLane,
    VirtualPeers,
    VirtualSegment,
    VirtualStore,
)
from runtime_ext.virtual.runtime import Outcome, Span, VirtualCall, VirtualRuntime

__all__ = [
    "Outcome",
    "Span",
    "VirtualArena",
    "VirtualCall",
    "VirtualClock",
    "VirtualEvent",
    "VirtualLane",
    "VirtualPeers",
    "VirtualRuntime",
    "VirtualSegment",
    "VirtualStore",
]
