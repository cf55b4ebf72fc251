"""How a command takes memory from the system."""

from __future__ import annotations

import ctypes
from typing import Final

TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
"""The numbers of these parameters in glibc's `mallopt`."""
MAPPED_BYTES: Final = 32 << 20
"""Arrays below this size come from memory that is kept; glibc takes no larger threshold."""
KEPT_BYTES: Final = 1 << 30


def keep_freed_memory() -> None:
    """Let the C library keep up to 1 GiB of freed memory for the next arrays; nothing happens without glibc.

    By default it returns the memory of large arrays, and the system clears it page by page when the next array needs
    it. A command that makes and drops copies of a model spends a good part of its time on that.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(MMAP_THRESHOLD, MAPPED_BYTES)
        tune(TRIM_THRESHOLD, KEPT_BYTES)
