"""Canonical JSON (RFC 8785): one encoding, a strict parser, and typed fields of what was parsed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable
from itertools import accumulate, takewhile
from typing import Any, Final, NoReturn, TypeAlias, cast

import rfc8785

from tallystick.core.errors import MalformedError

# How deeply a JSON text is nested, measured before a parser recurses into it: deep nesting can crash a process.

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
    """Whether a JSON text is nested deeper than `most`; it returns at once if there are few brackets."""
    return data.count(b"[") + data.count(b"{") > most < nesting(data)


def has_more_lists(data: bytes, most: int) -> bool:
    """Whether a JSON text holds more lists and objects than `most`; it returns at once if there are few brackets."""
    brackets = _outside_strings(data) if data.count(b"[") + data.count(b"{") > most else b""
    return brackets.count(b"[") + brackets.count(b"{") > most


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


# Canonical JSON (RFC 8785) and the strict parser in front of it.
#
# A value has exactly one encoding, and `decode` refuses any other bytes. So two documents have the same digest
# exactly if they hold the same value.

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
    """Whether Python's writer, which is much faster, gives the canonical bytes; false for deeper nesting.

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
    if is_deep(data, depth_max):
        raise MalformedError(f"{what}: nested deeper than {depth_max}")
    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=unique_members,
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


def unique_members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """The `object_pairs_hook` that refuses a key which occurs twice; raises `ValueError`."""
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


# Typed fields out of parsed JSON; whatever is missing, unknown or of another type is refused.

Fields = dict[str, Json]


def fields(value: Json, names: Collection[str], what: str) -> Fields:
    """The object `value`, which has exactly the keys `names`."""
    if not isinstance(value, dict):
        raise MalformedError(f"{what}: {shown(value)} is no object")
    for name in names:
        if name not in value:
            raise MalformedError(f"{what}: lacks {name!r}")
    if len(value) > len(names):
        unknown = next(name for name in value if name not in names)
        raise MalformedError(f"{what}: has an unknown field {shown(unknown)}")
    return value


def items(value: Json, what: str) -> list[Json]:
    """An array."""
    if not isinstance(value, list):
        raise MalformedError(f"{what}: {shown(value)} is no list")
    return value


def text(value: Json, what: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise MalformedError(f"{what}: {shown(value)} is no string")
    return value


def natural(value: Json, what: str) -> int:
    """An integer from 0 to 2⁵³ − 1; a boolean is none."""
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise MalformedError(f"{what}: {shown(value)} is no natural number")
    return value


def shown(value: object) -> str:
    """A value on one short line of printable ASCII: the author of the document chose it."""
    line = ascii(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return line if len(line) <= 80 else f"{line[:79]}~"
