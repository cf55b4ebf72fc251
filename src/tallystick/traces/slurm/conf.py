"""Lines of SLURM's configuration: `Key=value Key="a value"`, with comments and lines that go on after a backslash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tallystick.errors import MalformedError

PAIR: Final = re.compile(r'\s*([A-Za-z_]\w*)\s*\+?=("[^"]*"|[^\s"]*)', re.ASCII)
Line = dict[str, str]
"""The values of one line by their keys in lower case."""


def conf_lines(data: bytes, name: str) -> Iterator[Line]:
    """The lines of a file, those that go on put together; raises `MalformedError` naming the file and the line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{name}: byte {error.start} is not UTF-8") from None
    number, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        whole += line.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        if whole.strip() and not whole.strip().lower().startswith("include "):
            yield _pairs(whole, f"{name}: line {number}")
        whole = ""
    if whole.strip():
        raise MalformedError(f"{name}: line {number} goes on behind the end of the file")


def _pairs(line: str, where: str) -> Line:
    found: Line = {}
    place = 0
    while line[place:].strip():
        match = PAIR.match(line, place)
        if match is None:
            raise MalformedError(f"{where}: {line[place:].strip()[:40]!a} is not of the form Key=value")
        found[match[1].lower()] = match[2].strip('"')
        place = match.end()
    return found
