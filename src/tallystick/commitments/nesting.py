"""How deeply a JSON text is nested, measured before a parser recurses into it: deep nesting can crash a process."""

from __future__ import annotations

import json
import re
from itertools import accumulate, takewhile
from typing import Any, Final

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


def is_deep(data: bytes, most: int = DEPTH_MAX) -> bool:
    """Whether a JSON text is nested deeper than `most`; few brackets are told at once."""
    return data.count(b"[") + data.count(b"{") > most < nesting(data)


def has_more_lists(data: bytes, most: int) -> bool:
    """Whether a JSON text holds more lists and objects than `most`; few brackets are told at once."""
    found = _outside_strings(data) if data.count(b"[") + data.count(b"{") > most else b""
    return found.count(b"[") + found.count(b"{") > most


def loose_json(data: bytes | str, **hooks: Any) -> Any:
    """JSON as any program may write it, which need not be canonical; `hooks` are those of `json.loads`.

    Raises `ValueError` for what is no JSON, and for what is nested deeper than `DEPTH_MAX`.
    """
    if is_deep(data.encode(errors="surrogatepass") if isinstance(data, str) else data):
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    return json.loads(data, **hooks)


def _outside_strings(data: bytes) -> bytes:
    """The brackets outside strings, in order.

    A pair of adjacent quotation marks is removed: whether it opens and closes a string or closes one and opens the
    next, what lies outside strings is the same without it.
    """
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = unescaped.translate(None, _OTHER).replace(b'""', b"")
    return re.sub(rb'"[^"]*+"?', b"", marks)
