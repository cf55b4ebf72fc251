"""The fields in which two documents differ, by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.commitments.encoding import Json

NOT_THERE: Final = "not there"
TEXT_SHOWN: Final = 32
LIST_SHOWN: Final = 80


@dataclass(frozen=True)
class FieldDifference:
    """One field with its two values; a value that one side lacks is "not there"."""

    name: str
    first: Json
    second: Json

    def to_json(self) -> Json:
        """As JSON values."""
        return {"field": self.name, "first": self.first, "second": self.second}

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.first)} / {_short(self.second)}"


def differing_fields(first: Json, second: Json) -> tuple[FieldDifference, ...]:
    """The differing fields of two JSON values, in the order of their names; a list is one field."""
    mine, theirs = dict(_flat(first, "")), dict(_flat(second, ""))
    return tuple(
        FieldDifference(name, mine.get(name, NOT_THERE), theirs.get(name, NOT_THERE))
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name, NOT_THERE) != theirs.get(name, NOT_THERE)
    )


def _flat(value: Json, name: str) -> Iterator[tuple[str, Json]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _short(value: Json) -> str:
    if value == "":
        return "empty"
    if isinstance(value, str):
        return value if len(value) <= TEXT_SHOWN else f"{value[: TEXT_SHOWN - 1]}…"
    shown = "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
    return shown if len(shown) <= LIST_SHOWN else f"{shown[: LIST_SHOWN - 1]}…"
