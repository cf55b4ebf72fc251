"""Integer polynomials over named dimensions, such as `4*batch*length+1`.

polynomial = ["-"] product { ("+" | "-") product }
product    = factor { "*" factor }
factor     = integer | name
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tallystick.errors import MalformedError

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
RESERVED: Final = frozenset({"inf", "nan"})
LENGTH_MAX: Final = 200
VALUE_MAX: Final = 2**53 - 1
_PRODUCT: Final = re.compile(r"([+-]?)((?:[a-z0-9_]+)(?:\*[a-z0-9_]+)*)")
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,15}")


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """The value of a polynomial whose names are replaced by their sizes.

    Raises `MalformedError` if `text` is not a polynomial, if a name has no size, or beyond 2⁵³ − 1 in magnitude.

    >>> evaluate("4*batch*length+1", {"batch": 2, "length": 3})
    25
    """
    total, position = 0, 0
    while position < len(text) or not position:
        found = _PRODUCT.match(text, position)
        if found is None or len(text) > LENGTH_MAX or (position and not found[1]):
            raise MalformedError(f"{ascii(text)[:80]} is no integer polynomial")
        product = _product(found[2], sizes)
        total += -product if found[1] == "-" else product
        position = found.end()
    return _bounded(total)


def _product(text: str, sizes: Mapping[str, int]) -> int:
    found = 1
    for factor in text.split("*"):
        found = _bounded(found * _factor(factor, sizes))
    return found


def _factor(text: str, sizes: Mapping[str, int]) -> int:
    if _INTEGER.fullmatch(text):
        return int(text)
    if text not in sizes:
        raise MalformedError(f"{ascii(text)[:40]} is no dimension and no integer")
    return sizes[text]


def _bounded(value: int) -> int:
    if abs(value) > VALUE_MAX:
        raise MalformedError("a polynomial has a value beyond 2^53 - 1")
    return value
