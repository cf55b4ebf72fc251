"""Reads on in an append-only log, from where the last reading ended.

The root over what was read before is kept as a frontier. So the second reading finds a line that was changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tallystick.commitments.tree import Frontier, Hash, leaf_hash
from tallystick.errors import MalformedError
from tallystick.store.log import LINE_BYTES_MAX

HASH_BYTES: Final = 32


@dataclass(frozen=True)
class LogPosition:
    """How far a log was read: whole lines, their bytes, and the tree over them."""

    bytes_read: int = 0
    frontier: Frontier = field(default_factory=Frontier.empty)

    @classmethod
    def of(cls, bytes_read: int, lines: int, peaks: bytes) -> LogPosition:
        """The position that a row of the database holds."""
        hashes = tuple(Hash(peaks[at : at + HASH_BYTES]) for at in range(0, len(peaks), HASH_BYTES))
        return cls(bytes_read, Frontier(lines, hashes))

    @property
    def lines(self) -> int:
        """The number of lines read."""
        return self.frontier.size

    @property
    def peaks(self) -> bytes:
        """The roots of the complete subtrees, one after the other."""
        return b"".join(self.frontier.peaks)

    def behind(self, line: bytes, leaf: Hash) -> LogPosition:
        """The position behind one more line, given without its line feed."""
        return LogPosition(self.bytes_read + len(line) + 1, self.frontier.append(leaf))


@dataclass(frozen=True)
class LogLine:
    """A line, its leaf hash, and the position behind it."""

    line: bytes
    leaf: Hash
    behind: LogPosition


def whole_lines(path: Path, start: int = 0, bytes_max: int = LINE_BYTES_MAX, end: int | None = None) -> Iterator[bytes]:
    """The lines that begin from byte `start` on, before `end` if it is given, without their line feeds.

    One that is still being written is left out. Raises `MalformedError` at a line that is longer than `bytes_max`.
    """
    line = b""
    with path.open("rb") as file:
        file.seek(start)
        while (end is None or start < end) and (line := file.readline(bytes_max + 1)).endswith(b"\n"):
            start += len(line)
            yield line[:-1]
        if len(line) > bytes_max and not line.endswith(b"\n"):
            raise MalformedError(f"{path.name}: the line at byte {file.tell() - len(line)} is longer than {bytes_max}")


def read_on(
    path: Path, position: LogPosition, bytes_max: int = LINE_BYTES_MAX, end: int | None = None
) -> Iterator[LogLine]:
    """The whole lines behind `position` that begin before byte `end`; raises what `whole_lines` raises.

    Whoever reads in batches names the size that the log had at first: it may grow faster than it is read.
    """
    for line in whole_lines(path, position.bytes_read, bytes_max, end):
        leaf = leaf_hash(line)
        position = position.behind(line, leaf)
        yield LogLine(line, leaf, position)


def position_of(path: Path, lines: int) -> LogPosition:
    """The position behind the first `lines` lines as they stand now, or behind the last one if they are fewer."""
    position = LogPosition()
    for _, found in zip(range(lines), read_on(path, position), strict=False):
        position = found.behind
    return position
