"""Reads an append-only log of canonical lines under an RFC 6962 root.

Opening one line reads that line and a few tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.commitments.digests import digest_bytes
from tallystick.commitments.proofs import check_inclusion, prove_inclusion
from tallystick.commitments.tiles import TileReader
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.documents.files import file_size
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.transcripts.claim import Log

LINE_BYTES_MAX = 1 << 20
OFFSET_BYTES = 8


def read_lines(path: Path, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """The lines of a log without their line feeds; raises `MalformedError` at a truncated or endless line."""
    file_size(path)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(bytes_max + 1):
            if not line.endswith(b"\n"):
                raise MalformedError(f"{path.name}: line {number + 1} is truncated or longer than {bytes_max} bytes")
            yield line[:-1]
            number += 1


@dataclass(frozen=True)
class OpenedLine:
    """One line of a log with the proof that it stands at `index`."""

    index: int
    line: bytes
    proof: tuple[Hash, ...]

    def check(self, log: Log) -> None:
        """Raise `ProofError` unless this line is line `index` of `log`."""
        check_inclusion(list(self.proof), leaf_hash(self.line), self.index, log.size, Hash(digest_bytes(log.root)))


def open_line(path: Path, index: int, size: int) -> OpenedLine:
    """Line `index` of a log of `size` lines, with its inclusion proof from the tiles."""
    if not 0 <= index < size:
        raise ProofError(f"record {index} lies outside a log of {size} records")
    proof = prove_inclusion(TileReader(tiles_folder(path), size), index, size)
    return OpenedLine(index, line_at(path, index), tuple(proof))


def line_at(path: Path, index: int) -> bytes:
    """Line `index` of the log at `path`, found by its index file; raises what `open_line` raises of files."""
    return _line_from(path, _offset(path, index))


def _offset(path: Path, index: int) -> int:
    offsets = index_path(path)
    if not offsets.is_file():
        raise UnavailableError(f"{offsets.name}: not there; `tally fsck --repair` writes it anew")
    with offsets.open("rb") as file:
        file.seek(index * OFFSET_BYTES)
        entry = file.read(OFFSET_BYTES)
    if len(entry) != OFFSET_BYTES:
        raise MalformedError(f"{offsets.name}: ends before record {index}")
    return int.from_bytes(entry, "little")


def _line_from(path: Path, offset: int) -> bytes:
    size = file_size(path)
    with path.open("rb") as file:
        file.seek(min(offset, size))
        line = file.readline(LINE_BYTES_MAX + 1)
    if not line.endswith(b"\n"):
        raise MalformedError(f"{path.name}: no whole line starts at byte {offset}")
    return line[:-1]


def tiles_folder(path: Path) -> Path:
    """The folder of the tiles of the log at `path`."""
    return path.with_name("tiles") / path.stem


def index_path(path: Path) -> Path:
    """The file of line offsets, 8 bytes each, of the log at `path`."""
    return path.with_suffix(".index")
