"""SLURM's lists of names: `node[1-3,07],rack[1-2]n[0-1]` is eight names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from tallystick.errors import MalformedError

NAMES_MAX: Final = 1 << 17
"""The most names in one list: larger than any cluster that SLURM runs."""
LISTED_MAX: Final = 1 << 20
"""The most names in all lists of one file: a node stands in several."""
PART: Final = re.compile(r"([^\[\],\s]*)(?:\[([\d,\- ]+)\])?", re.ASCII)
RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass
class ListedNames:
    """Reads the lists of names of one file, which are limited together."""

    file: str
    left: int = LISTED_MAX

    def names_in(self, text: str) -> list[str]:
        """The names of a list; raises `MalformedError` if it is none, or one too many."""
        found = names_in(text, self.file)
        self.left -= len(found)
        if self.left < 0:
            raise MalformedError(f"{self.file}: its lists hold more than {LISTED_MAX} names")
        return found


def names_in(text: str, what: str) -> list[str]:
    """The names of a list, in its order; raises `MalformedError` naming `what` if it is none, or too long."""
    found: list[str] = []
    for each in _split(text, what):
        found += _names(each, what, NAMES_MAX - len(found))
    return found


def _split(text: str, what: str) -> Iterator[str]:
    """The parts between commas that stand outside of brackets."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise _refused(text, what)
        if character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if depth:
        raise _refused(text, what)
    yield text[start:].strip()


def _names(text: str, what: str, left: int) -> list[str]:
    parts: list[list[str]] = []
    place, count = 0, 1
    while place < len(text):
        match = PART.match(text, place)
        if match is None or match.end() == place:
            raise _refused(text, what)
        word, ranges = match.groups()
        numbers = [word] if ranges is None else [f"{word}{each}" for each in _numbers(ranges, what, left)]
        parts.append(numbers)
        count *= len(numbers)
        if count > left:
            raise MalformedError(f"{what}: more than {NAMES_MAX} names")
        place = match.end()
    return ["".join(each) for each in product(*parts)] if parts else []


def _numbers(ranges: str, what: str, left: int) -> list[str]:
    """`1-3,07` as four numbers, with the zeros in front of the first of a range."""
    found: list[str] = []
    for each in ranges.split(","):
        match = RANGE.fullmatch(each.strip())
        if match is None:
            raise _refused(ranges, what)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= left:
            raise MalformedError(f"{what}: the range {each.strip()} is empty or too long")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _refused(text: str, what: str) -> MalformedError:
    return MalformedError(f"{what}: {text[:40]!a} is no list of names")
