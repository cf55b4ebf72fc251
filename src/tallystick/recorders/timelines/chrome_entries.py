"""Reads Chrome trace JSON as a stream: the settings in front of the events, then one event at a time."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tallystick.commitments.nesting import is_deep, loose_json
from tallystick.documents.files import file_size
from tallystick.errors import MalformedError, UnavailableError

PIECE: Final = 1 << 20
ENTRY_CHARACTERS_MAX: Final = 1 << 20
HEADER_CHARACTERS_MAX: Final = 1 << 20
NOTHING_MORE: Final = re.compile(r"[\s,]*")
EVENTS: Final = re.compile(r'"traceEvents"\s*:\s*\[')


@dataclass
class ChromeFile:
    """A trace that a profiler wrote: `header` holds what stands before its events."""

    name: str
    header: dict[str, Any]
    _text: IO[str]
    _rest: str

    def entries(self) -> Iterator[dict[str, Any]]:
        """The events in the order of the file; their times are strings, so that no nanosecond is lost.

        Raises `MalformedError` naming the file where it is cut short, or holds something else.
        """
        rest, number = self._checked(self._rest, 0), 0
        while True:
            rest = rest[_skipped(rest) :]
            if rest.startswith("]"):
                return
            entry, end = self._entry(rest, number)
            if entry is None:
                rest = self._more(rest, number)
                continue
            rest, number = rest[end:], number + 1
            yield entry

    def _entry(self, rest: str, number: int) -> tuple[dict[str, Any] | None, int]:
        if not rest:
            return None, 0
        try:
            entry, end = _DECODER.raw_decode(rest)
        except json.JSONDecodeError:
            return None, 0
        if not isinstance(entry, dict):
            raise MalformedError(f"{self.name}: event {number} is no object")
        return entry, end

    def _more(self, rest: str, number: int) -> str:
        """The rest with the next piece of the file."""
        if len(rest) > ENTRY_CHARACTERS_MAX + PIECE:
            raise MalformedError(f"{self.name}: event {number} is no JSON, or longer than {ENTRY_CHARACTERS_MAX}")
        piece = _read(self._text, self.name)
        if not piece:
            raise MalformedError(f"{self.name}: cut short, or no JSON, behind event {number}")
        return self._checked(rest + piece, number)

    def _checked(self, rest: str, number: int) -> str:
        """`rest`, which begins with an event, if nothing in it is nested too deep for a parser that recurses."""
        if is_deep(rest.encode(errors="surrogatepass")):
            raise MalformedError(f"{self.name}: an event behind event {number} is nested too deep")
        return rest


_DECODER: Final = json.JSONDecoder(parse_float=str)


@contextmanager
def chrome_file(path: Path) -> Iterator[ChromeFile]:
    """The trace at `path`, which may be compressed by gzip.

    Raises `UnavailableError` where it cannot be read, `MalformedError` where it is no Chrome trace.
    """
    file_size(path)
    with _opened(path) as text:
        start = _read(text, path.name)
        match = EVENTS.search(start)
        if match is None and not start.lstrip().startswith("["):
            raise MalformedError(f"{path.name}: no Chrome trace: it has no traceEvents")
        header = {} if match is None else _header(start[: match.start()], path.name)
        rest = start.lstrip()[1:] if match is None else start[match.end() :]
        yield ChromeFile(path.name, header, text, rest)


def _opened(path: Path) -> IO[str]:
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rt", encoding="utf-8") if is_packed else path.open(encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{path.name}: could not be read: {error.strerror}") from None


def _header(text: str, name: str) -> dict[str, Any]:
    try:
        found = loose_json(text.rstrip().rstrip(",") + "}")
    except ValueError:
        raise MalformedError(f"{name}: what stands before traceEvents is no JSON") from None
    return found if isinstance(found, dict) else {}


def _skipped(text: str) -> int:
    match = NOTHING_MORE.match(text)
    return 0 if match is None else match.end()


def _read(text: IO[str], name: str) -> str:
    try:
        return text.read(PIECE)
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError) as error:
        raise MalformedError(f"{name}: could not be read as text: {str(error)[:80]}") from None
