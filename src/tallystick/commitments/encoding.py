"""Canonical JSON (RFC 8785) and the strict parser in front of it.

A value has exactly one encoding, and `decode` refuses any other bytes. So two documents have the same digest
exactly if they hold the same value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias, cast

import rfc8785

from tallystick.commitments.nesting import DEPTH_MAX, is_deep
from tallystick.errors import MalformedError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

INTEGER_MAX = 2**53 - 1
BYTES_MAX = 16 << 20
_WRITER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False)


def encode(value: Json) -> bytes:
    """The canonical bytes of `value`; raises `MalformedError` if it has none, such as NaN.

    >>> encode({"b": 1.0, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    """
    try:
        return _WRITER.encode(value).encode("ascii") if _are_plain((value,)) else rfc8785.dumps(cast(Any, value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise MalformedError(f"no canonical JSON: {error}") from None


def _are_plain(values: Iterable[Any], depth: int = DEPTH_MAX) -> bool:
    """Whether Python's writer, which is much faster, gives the canonical bytes; not asked of deeper nesting.

    It escapes ASCII text in the same way, and sorts ASCII keys in the same order. It writes the same digits of a number
    and differs only where it writes an exponent, or `.0` behind a whole one.
    """
    for value in values:  # one loop for all members: a call for each would take longer than the writing
        kind = type(value)
        if kind is str:
            plain = value.isascii()
        elif kind is int:
            plain = -INTEGER_MAX <= value <= INTEGER_MAX
        elif kind is float:
            plain = 1e-4 <= abs(value) < 1e15 and not value.is_integer()
        elif kind is dict:
            names = depth > 0 and all(type(name) is str and name.isascii() for name in value)
            plain = names and _are_plain(value.values(), depth - 1)
        elif kind is list:
            plain = depth > 0 and _are_plain(value, depth - 1)
        else:
            plain = value is None or kind is bool
        if not plain:
            return False
    return True


def parse(
    data: bytes, what: str, *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX, long_integers: bool = False
) -> Json:
    """Strict JSON in any layout; raises `MalformedError` naming `what`.

    Refused: duplicate keys, NaN and infinities, numbers that overflow, integers of 2⁵³ and more in magnitude,
    a byte order mark, invalid UTF-8, lone surrogates, trailing bytes, and more bytes or nesting than allowed.
    A longer row of digits is read as a float if it is the canonical spelling of one: RFC 8785 writes 1e20 without
    an exponent. With `long_integers` every longer row is, as other libraries write them into their files: 10³⁰ for
    "no limit".
    """
    if len(data) > bytes_max:
        raise MalformedError(f"{what}: {len(data)} bytes, more than the {bytes_max} allowed")
    _check_depth(data, what, depth_max)
    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_long_integer if long_integers else _integer,
            parse_float=_number,
            parse_constant=_refuse_constant,
        )
    except ValueError as error:
        raise MalformedError(f"{what}: no valid JSON: {error}") from None
    _check_text(value, what)
    return value


def decode(data: bytes, what: str, *, bytes_max: int = BYTES_MAX, depth_max: int = DEPTH_MAX) -> Json:
    """The value of canonical JSON; raises `MalformedError` naming `what` for any other bytes."""
    value = parse(data, what, bytes_max=bytes_max, depth_max=depth_max)
    if encode(value) != data:
        raise MalformedError(f"{what}: not canonical JSON (RFC 8785)")
    return value


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"duplicate key {name[:80]!r}")
        members[name] = value
    return members


def _integer(text: str) -> int | float:
    if len(text) <= 17 and abs(int(text)) <= INTEGER_MAX:
        return int(text)
    if encode(_number(text)).decode() != text:
        raise ValueError(f"integer {text[:24]} lies beyond 2^53 - 1")
    return float(text)


def _long_integer(text: str) -> int | float:
    return int(text) if len(text) <= 17 and abs(int(text)) <= INTEGER_MAX else _number(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number {text[:24]} overflows binary64")
    return value


def _refuse_constant(text: str) -> NoReturn:
    """NaN and Infinity, which Python's parser accepts and JSON does not have."""
    raise ValueError(f"{text} is no JSON number")


def _check_depth(data: bytes, what: str, depth_max: int) -> None:
    if is_deep(data, depth_max):
        raise MalformedError(f"{what}: nested deeper than {depth_max}")


def _check_text(value: Json, what: str) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise MalformedError(f"{what}: a string holds a lone surrogate")
    elif isinstance(value, list):
        for item in value:
            _check_text(item, what)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_text(name, what)
            _check_text(item, what)
