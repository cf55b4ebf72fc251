"""How deeply a JSON text is nested, told before a parser recurses into it."""

from __future__ import annotations

import re
from itertools import accumulate, takewhile
from typing import Final

DEPTH_MAX: Final = 64
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHER: Final = bytes(byte for byte in range(256) if byte not in b'"[]{}')


def nesting(data: bytes) -> int:
    """The most brackets that a parser would hold open in a JSON text; those inside strings do not count.

    Takes time and memory in proportion to the text, whatever the text is, and never recurses. Counting ends where
    more is closed than was opened: there every parser stops.

    >>> nesting(b'{"a": [["]"], []]}')
    3
    """
    brackets = map(_STEPS.__getitem__, _outside_strings(data))
    return max(takewhile((0).__le__, accumulate(brackets)), default=0)


def _outside_strings(data: bytes) -> bytes:
    """The brackets that stand outside strings, in their order.

    Two neighbouring quotation marks can go, whatever they begin or end: for all others they change nothing.
    """
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = unescaped.translate(None, _OTHER).replace(b'""', b"")
    return re.sub(rb'"[^"]*+"?', b"", marks)
