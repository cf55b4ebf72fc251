"""Reads Chrome trace JSON as a stream, sorts its entries on disk, and makes events of them."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from tallystick.core.canonical_json import is_deep, loose_json
from tallystick.core.documents import explain
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import file_size
from tallystick.formats.store.traces import TraceEvent

# Makes an event of what a profiler reported; whatever does not fit the format is refused in one line.

NAME_MAX: Final = 256


def made_event(name: str, **fields: Any) -> TraceEvent:
    """The event, its name cut to what the format holds; raises `MalformedError` naming the event and the field."""
    told = name.encode("utf-8", "replace").decode()[:NAME_MAX] or "unnamed"
    try:
        return TraceEvent(name=told, **fields)
    except ValidationError as error:
        raise MalformedError(f"event {told[:80]!a} of the profiler: {explain(error, TraceEvent)}") from None


# Sorts more rows than memory holds: sorted runs in files of a temporary folder, merged when they are read.

ROWS_IN_MEMORY: Final = 1 << 17
Row = list[Any]
"""Numbers, texts and lists of them; rows are ordered as lists are, so that what decides stands in front."""


class SortedRows(AbstractContextManager["SortedRows"]):
    """Takes rows in any order and gives them in ascending order, as often as asked."""

    def __init__(self, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        self._limit = rows_in_memory
        self._held: list[Row] = []
        self._folder = tempfile.TemporaryDirectory(prefix="tally-trace-")
        self._runs: list[Path] = []
        self.count = 0

    def add(self, row: Row) -> None:
        """Add one row."""
        self._held.append(row)
        self.count += 1
        if len(self._held) >= self._limit:
            self._spill()

    def __iter__(self) -> Iterator[Row]:
        """The rows in ascending order."""
        self._held.sort()
        return merge(*(_rows_of(path) for path in self._runs), iter(self._held))

    def __exit__(self, *_: object) -> None:
        """Remove the files."""
        self._folder.cleanup()

    def _spill(self) -> None:
        self._held.sort()
        path = Path(self._folder.name) / f"{len(self._runs)}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._held)
        self._runs.append(path)
        self._held = []


def _rows_of(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


# Reads Chrome trace JSON as a stream: the settings in front of the events, then one event at a time.

PIECE: Final = 1 << 20
ENTRY_CHARACTERS_MAX: Final = 1 << 20
UNPACKED_ALWAYS: Final = 64 << 20
UNPACKED_RATIO_MAX: Final = 100
"""How many times its size a large file may unpack to: traces become ten to thirty times smaller, bombs a thousand."""
NOTHING_MORE: Final = re.compile(r"[\s,]*")
EVENTS: Final = re.compile(r'"traceEvents"\s*:\s*\[')


@dataclass
class ChromeFile:
    """A trace that a profiler wrote: `header` holds what stands before its events."""

    name: str
    header: dict[str, Any]
    _pieces: Iterator[str]
    _rest: str

    def entries(self) -> Iterator[dict[str, Any]]:
        """The events in the order of the file; their times are strings, so that no nanosecond is lost.

        Raises `MalformedError` naming the file where it is cut short, or holds something else.
        """
        rest, at, number = self._checked(self._rest, 0), 0, 0
        while True:
            if match := NOTHING_MORE.match(rest, at):
                at = match.end()
            if rest.startswith("]", at):
                return
            entry, end = self._entry(rest, at, number)
            if entry is None:
                rest, at = self._more(rest[at:], number), 0
                continue
            at, number = end, number + 1
            yield entry

    def _entry(self, rest: str, at: int, number: int) -> tuple[dict[str, Any] | None, int]:
        if at == len(rest):
            return None, at
        try:
            entry, end = _DECODER.raw_decode(rest, at)
        except json.JSONDecodeError:
            return None, at
        except ValueError:  # an integer of thousands of digits
            raise MalformedError(f"{self.name}: event {number} holds a number that is too long") from None
        if not isinstance(entry, dict):
            raise MalformedError(f"{self.name}: event {number} is no object")
        return entry, end

    def _more(self, rest: str, number: int) -> str:
        """The rest with the next piece of the file."""
        if len(rest) > ENTRY_CHARACTERS_MAX + PIECE:
            raise MalformedError(f"{self.name}: event {number} is no JSON, or longer than {ENTRY_CHARACTERS_MAX}")
        piece = next(self._pieces, "")
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
    size = file_size(path)
    with _opened(path) as text:
        pieces = _pieces(text, path.name, size)
        start = next(pieces, "")
        match = EVENTS.search(start)
        if match is None and not start.lstrip().startswith("["):
            raise MalformedError(f"{path.name}: no Chrome trace: it has no traceEvents")
        header = {} if match is None else _header(start[: match.start()], path.name)
        rest = start.lstrip()[1:] if match is None else start[match.end() :]
        yield ChromeFile(path.name, header, pieces, rest)


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


def _pieces(text: IO[str], name: str, size: int) -> Iterator[str]:
    """The text of a file of `size` bytes; raises `MalformedError` where it is none, or a bomb."""
    left = max(UNPACKED_ALWAYS, UNPACKED_RATIO_MAX * size)
    while piece := _read(text, name):
        left -= len(piece)
        if left < 0:
            raise MalformedError(
                f"{name}: unpacks to more than {UNPACKED_RATIO_MAX} times its size; no profiler's file"
            )
        yield piece


def _read(text: IO[str], name: str) -> str:
    try:
        return text.read(PIECE)
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        raise MalformedError(f"{name}: could not be read as text: {str(error)[:80]}") from None
