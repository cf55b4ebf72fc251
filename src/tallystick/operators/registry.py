"""The allow-list: every operator that a graph may hold, by name; a family is loaded at the first use of one of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.definition import Family, Operator
from tallystick.operators.families import HOMES


class AllowList(Mapping[str, Operator]):
    """All operators by sorted name; a look-up loads the module that defines the operator, listing names loads none."""

    def __getitem__(self, name: str) -> Operator:
        """The operator of this name; raises `KeyError` for one that is not listed."""
        return _found(name)

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted(HOMES))

    def __len__(self) -> int:
        """How many there are."""
        return len(HOMES)


@cache
def _found(name: str) -> Operator:
    """Kept, because a graph of a thousand nodes asks several times for each; there are no more than are listed."""
    family: Family = import_module(HOMES[name]).FAMILY
    return family.operators[name]


OPERATORS: Final = AllowList()


def operator(name: str) -> Operator:
    """The operator of this name; raises `MalformedError` if it is not on the allow-list."""
    found = OPERATORS.get(name)
    if found is None:
        raise MalformedError(f"operator {name[:80]!r} is not on the allow-list")
    return found
