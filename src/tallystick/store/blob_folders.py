"""Where blobs lie: a folder of this machine, or of any store that `fsspec` knows. Names are paths inside the folder."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, cast

from tallystick.documents.files import sync_folder


class BlobFolder(Protocol):
    """What is asked of a folder; all raise `FileNotFoundError` for a name that is not there, or another `OSError`."""

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder."""

    def size(self, name: str) -> int:
        """Bytes."""

    def written(self, name: str) -> float | None:
        """When it was written, in seconds since 1970; `None` where the store does not say."""

    def open(self, name: str, mode: str) -> IO[bytes]:
        """A file to read (`rb`) or to write (`wb`)."""

    def move(self, name: str, new: str) -> None:
        """Give a whole file its name."""

    def remove(self, name: str) -> None:
        """Remove a file."""


class LocalBlobFolder:
    """A folder of this machine. A file that has its name is on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, folder: str) -> list[str]:
        """See `BlobFolder`."""
        return [path.name for path in (self.path / folder).iterdir()]

    def size(self, name: str) -> int:
        """See `BlobFolder`."""
        return (self.path / name).stat().st_size

    def written(self, name: str) -> float | None:
        """See `BlobFolder`."""
        return (self.path / name).stat().st_mtime

    def open(self, name: str, mode: str) -> IO[bytes]:
        """See `BlobFolder`."""
        if mode == "wb":
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        return cast("IO[bytes]", (self.path / name).open(mode))

    def move(self, name: str, new: str) -> None:
        """See `BlobFolder`."""
        with (self.path / name).open("rb") as file:
            os.fsync(file.fileno())
        (self.path / new).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).replace(self.path / new)
        sync_folder((self.path / new).parent)

    def remove(self, name: str) -> None:
        """See `BlobFolder`."""
        (self.path / name).unlink()


class UrlBlobFolder:
    """A folder of a store; raises `UnavailableError` where fsspec or the library for this kind is missing."""

    def __init__(self, url: str) -> None:
        from tallystick.store.remote_anchors import make_folder, open_store

        store, self._folder = open_store(url)
        self._store: Any = store
        self._make = partial(make_folder, store)

    def names(self, folder: str) -> list[str]:
        """See `BlobFolder`."""
        self._store.invalidate_cache()
        found = self._store.ls(self._path(folder), detail=False)
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def size(self, name: str) -> int:
        """See `BlobFolder`."""
        self._store.invalidate_cache()
        return int(self._store.info(self._path(name))["size"])

    def written(self, name: str) -> float | None:
        """See `BlobFolder`."""
        try:
            return float(self._store.modified(self._path(name)).timestamp())
        except NotImplementedError:
            return None

    def open(self, name: str, mode: str) -> IO[bytes]:
        """See `BlobFolder`."""
        if mode == "wb":
            self._make(self._path(name).rpartition("/")[0])
        return cast("IO[bytes]", self._store.open(self._path(name), mode))

    def move(self, name: str, new: str) -> None:
        """See `BlobFolder`."""
        self._make(self._path(new).rpartition("/")[0])
        self._store.mv(self._path(name), self._path(new))

    def remove(self, name: str) -> None:
        """See `BlobFolder`."""
        self._store.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def blob_folder(url: str) -> BlobFolder:
    """The folder at a path or URL; raises `UnavailableError` where this kind of store cannot be reached here."""
    local = url.removeprefix("file://")
    return UrlBlobFolder(url) if "://" in local or "::" in local else LocalBlobFolder(Path(local))
