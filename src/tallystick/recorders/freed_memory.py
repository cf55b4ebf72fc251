"""Gives freed memory back to the system: what a check took for a moment, the loop must not keep."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return the memory of freed arrays to the system; nothing happens without glibc, which else keeps small ones.

    It takes milliseconds, so it belongs behind work that is done seldom.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
