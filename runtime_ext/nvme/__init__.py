"""The store on files: slots of units in, direct reads and writes as work for a lane, and shared mappings out.

Files are anonymous, so nothing stays on disk when the process ends, however it ends.
"""

from runtime_ext.nvme.checks import StoreError
from runtime_ext.nvme.files import Swept, Syscalls, reclaim, sweep
from runtime_ext.nvme.segment import FileSegment
from runtime_ext.nvme.store import NvmeStore

__all__ = ["FileSegment", "NvmeStore", "StoreError", "Swept", "Syscalls", "reclaim", "sweep"]
