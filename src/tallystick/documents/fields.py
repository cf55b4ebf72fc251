"""Typed fields out of parsed JSON; whatever is missing, unknown or of another type is refused."""

from __future__ import annotations

from collections.abc import Collection

from tallystick.commitments.encoding import Json
from tallystick.commitments.tree import Hash
from tallystick.errors import MalformedError

Fields = dict[str, Json]
INTEGER_MAX = 2**53 - 1


def fields(value: Json, names: Collection[str], what: str) -> Fields:
    """The object `value`, which has exactly the keys `names`."""
    if not isinstance(value, dict):
        raise MalformedError(f"{what}: not an object")
    for name in sorted(value.keys() ^ set(names)):
        raise MalformedError(f"{what}: {'unknown' if name in value else 'missing'} field {name[:64]!r}")
    return value


def integer(value: Json, what: str, least: int = 0, most: int = INTEGER_MAX) -> int:
    """An integer from `least` to `most`; a boolean is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedError(f"{what}: not an integer")
    if not least <= value <= most:
        raise MalformedError(f"{what}: {value} is not within {least} to {most}")
    return value


def text(value: Json, what: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise MalformedError(f"{what}: not a string")
    return value


def items(value: Json, what: str) -> list[Json]:
    """An array."""
    if not isinstance(value, list):
        raise MalformedError(f"{what}: not an array")
    return value


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
