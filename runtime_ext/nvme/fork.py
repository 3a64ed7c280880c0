"""What a forked child may do with mapped files: read and change its own copy, never the parent's data."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

_MAP_FIXED = 0x10


def make_private(mapping: mmap.mmap, descriptor: int) -> None:
    """Put a private mapping of the same file in the place of a shared one; tensors over it keep their address.

    Called in a forked child: it would inherit the shared mapping, and what it writes would reach the parent's weights.
    OSError when the system refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    if libc.mmap(address, len(mapping), protection, flags, descriptor, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot make a mapping of {len(mapping)} B private in a forked child: {os.strerror(code)}")
