"""What this process holds in memory, as the Linux kernel counts it.

All sizes are bytes. OSError where /proc is missing.
"""

from __future__ import annotations

from pathlib import Path


def rss() -> int:
    """Resident memory now, mapped files included."""
    return _status("VmRSS:")


def peak_rss() -> int:
    """The most resident memory since the process began, or since `reset_peak_rss` last returned True."""
    return _status("VmHWM:")


def reset_peak_rss() -> bool:
    """Let `peak_rss` start again from what is resident now. False where the kernel does not allow it (a sandbox)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name.rstrip(':')}")
