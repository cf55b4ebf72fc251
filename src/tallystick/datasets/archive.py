"""Reading directories and tars into artifact commits, a block at a time."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from tallystick.datasets import ustar
from tallystick.datasets.artifact import COMMIT_BYTES_MAX, ArtifactCommit, ArtifactMember, check_commit, check_order
from tallystick.datasets.chunks import ChunkHasher
from tallystick.datasets.names import NameOrder, check_name, shown
from tallystick.documents.files import FILE_BYTES_MAX, file_size, read_document, write_atomically
from tallystick.errors import MalformedError, UnavailableError, UsageError

READ_BYTES = 1 << 20


def commit_directory(directory: Path) -> ArtifactCommit:
    """Commit to every file below `directory`, whatever its name, without writing the tar.

    Raises:
        MalformedError: for a link, device, pipe or socket, or a name that is not portable.
        UnavailableError: for a file that cannot be read, or that changes while it is read.
    """
    writer = _TarHasher()
    for entry in _list_entries(directory):
        writer.add(entry.name, entry.size, _read_entry(entry))
    return writer.finish()


def check_directory(directory: Path, claimed: ArtifactCommit) -> None:
    """Raise `ProofError` naming the first file in which `directory` differs from the commit."""
    check_commit(claimed, commit_directory(directory))


def check_tar(tar: bytes | Path) -> ArtifactCommit:
    """The commit of a tar in canonical form; raises `MalformedError` for any other bytes."""
    if isinstance(tar, bytes):
        return _read_tar(BytesIO(tar))
    file_size(tar)
    try:
        with tar.open("rb") as file:
            return _read_tar(file)
    except OSError as error:
        raise UnavailableError(f"{tar}: {error.strerror}") from None


def commit_path(directory: Path) -> Path:
    """Where the commit of `directory` is kept: beside it, because a file cannot hold its own digest."""
    return directory.resolve().parent / "commit.json"


def write_commit(commit: ArtifactCommit, directory: Path, out: Path | None = None) -> Path:
    """Write `commit.json` outside of the directory it commits to, and return where.

    Raises:
        UsageError: when `out` lies inside of `directory`, or holds something else already.
    """
    path = out or commit_path(directory)
    if path.resolve().is_relative_to(directory.resolve()):
        raise UsageError(f"{path} lies inside of {directory}: a file cannot hold its own digest")
    if path.exists() and read_document(path, FILE_BYTES_MAX) != commit.to_bytes():
        raise UsageError(f"{path} holds another commit: remove it or choose another file with --out")
    write_atomically(path, commit.to_bytes())
    return path


def read_commit(path: Path) -> ArtifactCommit:
    """Read a `commit.json`; raises `MalformedError` or `UnavailableError`."""
    return ArtifactCommit.from_bytes(read_document(path, COMMIT_BYTES_MAX))


@dataclass
class _TarHasher:
    """Hashes the canonical tar of the members it is given in order."""

    _chunks: ChunkHasher = field(default_factory=ChunkHasher)
    _members: list[ArtifactMember] = field(default_factory=list)
    size: int = 0

    def add(self, name: str, size: int, blocks: Iterable[bytes]) -> None:
        content = hashlib.sha256()
        self._write(ustar.encode_header(name, size))
        for block in blocks:
            content.update(block)
            self._write(block)
        self._write(ustar.padding(size))
        self._members.append(ArtifactMember(name, size, content.hexdigest()))

    def finish(self) -> ArtifactCommit:
        self._write(ustar.ending(self.size))
        return ArtifactCommit(self._chunks.finish().root, self.size, tuple(self._members))

    def _write(self, block: bytes) -> None:
        self._chunks.update(block)
        self.size += len(block)


@dataclass(frozen=True)
class _Entry:
    name: str
    path: Path
    size: int


def _list_entries(directory: Path) -> list[_Entry]:
    entries = sorted(_walk(directory, ""), key=lambda entry: os.fsencode(entry.name))
    check_order(entry.name for entry in entries)
    return entries


def _walk(directory: Path, prefix: str) -> Iterator[_Entry]:
    try:
        found = list(os.scandir(directory))
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{directory}: {error}") from None
    for item in found:
        name = prefix + item.name
        check_name(name)
        yield from _visit(name, Path(item.path))
    if prefix and not found:
        yield _Entry(prefix, directory, 0)


def _visit(name: str, path: Path) -> Iterator[_Entry]:
    try:
        status = path.lstat()
    except OSError as error:
        raise UnavailableError(f"{shown(name)}: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        yield from _walk(path, f"{name}/")
    elif stat.S_ISREG(status.st_mode):
        yield _Entry(name, path, status.st_size)
    else:
        raise MalformedError(f"{shown(name)}: a link, device, pipe or socket; only files can be committed to")


def _read_entry(entry: _Entry) -> Iterator[bytes]:
    """The content in blocks; a link put in the file's place after the listing is not followed."""
    if entry.name.endswith("/"):
        return
    left = entry.size
    try:
        handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as file:
            while block := file.read(READ_BYTES):
                left -= len(block)
                yield block
    except OSError as error:
        raise UnavailableError(f"{shown(entry.name)}: {error.strerror}") from None
    if left:
        raise UnavailableError(f"{shown(entry.name)} changed while it was read")


def _read_tar(file: BinaryIO) -> ArtifactCommit:
    tar, names = _TarHasher(), NameOrder()
    while any(header := _read_exactly(file, ustar.BLOCK_BYTES)):
        name, size = ustar.decode_header(header)
        names.add(name)
        tar.add(name, size, _read_blocks(file, size))
        if any(_read_exactly(file, len(ustar.padding(size)))):
            raise MalformedError(f"{shown(name)}: its last block is not filled with zeros")
    rest = file.read(ustar.RECORD_BYTES + ustar.BLOCK_BYTES)
    if header + rest != ustar.ending(tar.size):
        raise MalformedError("tar: does not end with zeros up to the next multiple of 10240 bytes")
    return tar.finish()


def _read_blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    for start in range(0, size, READ_BYTES):
        yield _read_exactly(file, min(READ_BYTES, size - start))


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise MalformedError("tar: ends in the middle of a member, or without two blocks of zeros")
    return data
