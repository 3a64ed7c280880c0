"""The parts of a CPU-only machine: work in, done by threads as lanes, over page-aligned buffers of one arena."""

from runtime_ext.host.arena import HostArena, HostBuffer
from runtime_ext.host.lane import HostEvent, HostLane
from runtime_ext.host.runtime import Alone, host_runtime

__all__ = ["Alone", "HostArena", "HostBuffer", "HostEvent", "HostLane", "host_runtime"]
