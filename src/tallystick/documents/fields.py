"""Typed fields out of parsed JSON; whatever is missing, unknown or of another type is refused."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tallystick.commitments.encoding import Json
from tallystick.commitments.tree import Hash
from tallystick.errors import MalformedError

Fields = dict[str, Json]
INTEGER_MAX: Final = 2**53 - 1


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


def integer(value: Json, what: str, least: int = 0, most: int = INTEGER_MAX) -> int:
    """An integer from `least` to `most`."""
    number = natural(value, what)
    if not least <= number <= most:
        raise MalformedError(f"{what}: {number} is not within {least} to {most}")
    return number


def hash_field(value: Json, what: str) -> Hash:
    """A node of a tree, written as 64 lower-case hexadecimal digits."""
    written = text(value, what)
    if len(written) != 64 or set(written) - set("0123456789abcdef"):
        raise MalformedError(f"{what}: not 64 lower-case hexadecimal digits")
    return Hash(bytes.fromhex(written))


def constant(value: Json, expected: str | int, what: str) -> None:
    """The one value that this version of the format allows."""
    if type(value) is not type(expected) or value != expected:
        raise MalformedError(f"{what}: must be {expected!r}")


def shown(value: object) -> str:
    """A value on one short line of printable ASCII: whoever wrote the document chose it."""
    line = ascii(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return line if len(line) <= 80 else f"{line[:79]}~"
