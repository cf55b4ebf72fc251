"""Bytes named by their digest, in a folder or any store that `fsspec` knows (spec/blob.md)."""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, cast

from tallystick.core.digests import PREFIX, Digest, digest_from, is_digest
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.files import sync_folder, write_atomically
from tallystick.formats.store.remote_anchors import PIECE, make_folder, open_store, store_errors
from tallystick.formats.store.run import BLOB_BYTES_MAX

# Where blobs lie: a folder of this machine, or of any store that `fsspec` knows.
#
# Names are paths inside the folder. All methods raise `FileNotFoundError` for a name that is not there, or another
# `OSError`. `written` is in seconds since 1970, or `None` where the store does not say; `move` gives a whole file its
# name.


class _LocalFolder:
    """A file that has its name is on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, folder: str) -> list[str]:
        return [path.name for path in (self.path / folder).iterdir()]

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def written(self, name: str) -> float | None:
        return (self.path / name).stat().st_mtime

    def open(self, name: str, mode: str) -> IO[bytes]:
        if mode == "wb":
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        return cast("IO[bytes]", (self.path / name).open(mode))

    def move(self, name: str, new: str) -> None:
        with (self.path / name).open("rb") as file:
            os.fsync(file.fileno())
        (self.path / new).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).replace(self.path / new)
        sync_folder((self.path / new).parent)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()


class _StoreFolder:
    """A folder of a store; raises `UnavailableError` where fsspec or the library for this kind is missing."""

    def __init__(self, url: str) -> None:
        store, self._folder = open_store(url)
        self._store: Any = store
        self._make = partial(make_folder, store)

    def names(self, folder: str) -> list[str]:
        self._store.invalidate_cache()
        paths = self._store.ls(self._path(folder), detail=False)
        return [str(path).rstrip("/").rpartition("/")[2] for path in paths]

    def size(self, name: str) -> int:
        self._store.invalidate_cache()
        return int(self._store.info(self._path(name))["size"])

    def written(self, name: str) -> float | None:
        try:
            return float(self._store.modified(self._path(name)).timestamp())
        except NotImplementedError:
            return None

    def open(self, name: str, mode: str) -> IO[bytes]:
        if mode == "wb":
            self._make(self._path(name).rpartition("/")[0])
        return cast("IO[bytes]", self._store.open(self._path(name), mode))

    def move(self, name: str, new: str) -> None:
        self._make(self._path(new).rpartition("/")[0])
        self._store.mv(self._path(name), self._path(new))

    def remove(self, name: str) -> None:
        self._store.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


# Bytes named by their digest, in a folder or any store that `fsspec` knows (spec/blob.md).
#
# Bytes are compared with their name whenever they are read: what is damaged is refused, what is missing is reported,
# and nothing takes its place.

DOMAIN: Final = b"tallystick/blob/v1\n"
BLOBS: Final = "blobs"
DRAFTS: Final = "drafts"
"""What is being written lies there; it gets a name among the blobs when it is whole."""


class Blobs:
    """The blobs of the folder at `url`: a path, `file://…`, `s3://…` or another kind that fsspec knows.

    Every method raises `UnavailableError` where the store cannot be read or written.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        local = url.removeprefix("file://")
        is_local = "://" not in local and "::" not in local
        self._folder = _LocalFolder(Path(local)) if is_local else _StoreFolder(url)

    def put(self, source: bytes | Path, again: bool = False) -> Digest:
        """Keep bytes, or those of a file, under their digest; a crash leaves all of them there, or nothing.

        A blob of the same size is taken to be whole; with `again` it is read, and replaced if damaged.
        """
        name = blob_digest(source)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        with self._errors("written"):
            if self.size(name) != size or (again and not self._is_whole(name, size)):
                self._write(source, name)
        return name

    def get(self, name: Digest, bytes_max: int = BLOB_BYTES_MAX) -> bytes:
        """The bytes named `name`; raises `ProofError` for other bytes, `UnavailableError` for more than `bytes_max`."""
        return b"".join(self._read(name, bytes_max))

    def fetch(self, name: Digest, target: Path, bytes_max: int) -> None:
        """Write the bytes named `name` to a file, which appears whole and verified or not at all; raises as `get`."""
        write_atomically(target, lambda file: file.writelines(self._read(name, bytes_max)))

    def verify(self, name: Digest, bytes_max: int) -> None:
        """Read a blob to its end; raises as `get`."""
        for _ in self._read(name, bytes_max):
            continue

    def size(self, name: Digest) -> int | None:
        """How many bytes the store says a blob has; `None` where it is not there."""
        with self._errors("read"):
            try:
                return self._folder.size(_path(name))
            except FileNotFoundError:
                return None

    def written(self, name: Digest) -> float | None:
        """When a blob was written, in seconds since 1970; `None` where the store does not say."""
        with self._errors("read"):
            return self._folder.written(_path(name))

    def digests(self) -> Iterator[Digest]:
        """The names of the blobs, in ascending order; other files between them are left out."""
        for shelf in self._names(BLOBS):
            for digits in self._names(f"{BLOBS}/{shelf}"):
                if digits[:2] == shelf and is_digest(PREFIX + digits):
                    yield Digest(PREFIX + digits)

    def delete(self, name: Digest) -> None:
        """Remove a blob, if it is there."""
        with self._errors("deleted"), suppress(FileNotFoundError):
            self._folder.remove(_path(name))

    def drop_drafts(self, before: float) -> int:
        """Remove what was never finished, if it was begun `before`, in seconds since 1970; returns how many."""
        begun = [f"{DRAFTS}/{draft}" for draft in self._names(DRAFTS)]
        removed = 0
        for name in begun:
            with self._errors("deleted"), suppress(FileNotFoundError):
                if (self._folder.written(name) or before) < before:
                    self._folder.remove(name)
                    removed += 1
        return removed

    def _names(self, folder: str) -> list[str]:
        with self._errors("read"):
            try:
                return sorted(self._folder.names(folder))
            except FileNotFoundError:
                return []

    def _write(self, source: bytes | Path, name: Digest) -> None:
        draft, hasher = f"{DRAFTS}/{uuid.uuid4().hex}", hashlib.sha256(DOMAIN)
        with _opened(source) as file, self._folder.open(draft, "wb") as out:
            for piece in _pieces(file):
                hasher.update(piece)
                out.write(piece)
        if digest_from(hasher.digest()) != name:
            self._folder.remove(draft)
            raise UnavailableError(f"{source!s:.200}: has changed while it was read")
        self._folder.move(draft, _path(name))

    def _is_whole(self, name: Digest, size: int) -> bool:
        try:
            self.verify(name, size)
        except ProofError:
            return False
        return True

    def _read(self, name: Digest, bytes_max: int) -> Iterator[bytes]:
        """The bytes of a blob; raises at their end if they are other ones, so nobody may use them before."""
        hasher, left = hashlib.sha256(DOMAIN), bytes_max
        with self._errors("read"):
            try:
                opened = self._folder.open(_path(name), "rb")
            except FileNotFoundError:
                raise UnavailableError(f"{name}: missing: no such blob at {self.url}") from None
        with self._errors("read"), opened as file:
            for piece in _pieces(file):
                left -= len(piece)
                if left < 0:
                    raise UnavailableError(f"{name}: more than the {bytes_max} bytes allowed stand at {self.url}")
                hasher.update(piece)
                yield piece
        if digest_from(hasher.digest()) != name:
            raise ProofError(f"{name}: damaged: the blob at {self.url} does not hold the bytes it is named after")

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turn what a store refuses into one line."""
        try:
            with store_errors():
                yield
        except OSError as error:
            raise UnavailableError(f"{self.url}: could not be {done}: {error}"[:400]) from None


def blob_digest(source: bytes | Path) -> Digest:
    """The name that bytes, or those of a file, have as a blob; raises `UnavailableError` where they cannot be read."""
    hasher = hashlib.sha256(DOMAIN)
    try:
        with _opened(source) as file:
            for piece in _pieces(file):
                hasher.update(piece)
    except OSError as error:
        raise UnavailableError(f"{source!s:.200}: could not be read: {error.strerror}") from None
    return digest_from(hasher.digest())


def _path(name: Digest) -> str:
    digits = name.removeprefix(PREFIX)
    return f"{BLOBS}/{digits[:2]}/{digits}"


def _opened(source: bytes | Path) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
