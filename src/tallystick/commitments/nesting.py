"""How deeply a JSON text is nested, measured before a parser recurses into it."""

from __future__ import annotations

import re
from itertools import accumulate, takewhile
from typing import Final

DEPTH_MAX: Final = 64
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHER: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}')


def nesting(data: bytes) -> int:
    """The largest number of brackets open at one time in a JSON text; brackets inside strings do not count.

    Time and memory are linear in the length of any text, and nothing recurses. Counting stops at a bracket that
    closes nothing, because every parser stops there.

    >>> nesting(b'{"a": [["]"], []]}')
    3
    """
    brackets = map(_STEPS.__getitem__, _outside_strings(data))
    return max(takewhile((0).__le__, accumulate(brackets)), default=0)


def _outside_strings(data: bytes) -> bytes:
    """The brackets outside strings, in order.

    A pair of adjacent quotation marks is removed: whether it opens and closes a string or closes one and opens the
    next, what lies outside strings is the same without it.
    """
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = unescaped.translate(None, _OTHER).replace(b'""', b"")
    return re.sub(rb'"[^"]*+"?', b"", marks)
