"""Anchors kept elsewhere than in the run directory: read through `fsspec`, which knows many kinds of stores.

A file may be compressed by zstd; its name then ends with `.zst`.

Nothing that is read is trusted: the reader of an anchor compares its digest with the recorded one. A missing file is
reported as missing, and nothing takes its place.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tallystick.core.errors import TallyError, UnavailableError
from tallystick.core.lazy import not_installed

PIECE: Final = 1 << 20
COMPRESSED: Final = ".zst"
COMPRESSING: Final = "zstd::"
"""Before the URL of a store whose files are to be compressed."""
WINDOW_MAX: Final = 1 << 27
"""Bytes that a decompressor may keep: the writer of the file chose how many it needs."""
KEPT: Final = 3
"""The most files that were fetched and are still on the disk: what later anchors refer to is often the same."""
WITH_BUCKETS: Final = frozenset(("abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"))
"""Kinds of stores whose top folders are buckets."""


class RemoteAnchors:
    """The files of the folder at `url`, as `file://…`, `s3://…` or another kind that fsspec knows.

    Raises `UnavailableError` where fsspec or the library for this kind is missing, or the store does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._fetched: dict[str, Path] = {}
        self._store, self._folder = open_store(url)
        self._cache = Path(tempfile.mkdtemp(prefix="tally-anchors-"))
        weakref.finalize(self, shutil.rmtree, self._cache, ignore_errors=True)  # with the last reader, or at exit

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the files that are there, in whichever form."""
        return frozenset(name.removesuffix(COMPRESSED) for name in self._listed)

    @cached_property
    def _listed(self) -> frozenset[str]:
        try:
            with store_errors():
                paths = self._store.ls(self._folder, detail=False)
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise self._failed(error) from None
        return frozenset(str(path).rstrip("/").rpartition("/")[2] for path in paths)

    def fetch(self, name: str, bytes_max: int) -> Path | None:
        """A copy of a file on this machine, `None` where there is none.

        Raises `UnavailableError` if it exceeds `bytes_max`, cannot be read, or is compressed and `zstandard` missing.
        """
        if name not in self.names:
            return None
        if name not in self._fetched:
            while len(self._fetched) >= KEPT:
                self._fetched.pop(next(iter(self._fetched))).unlink(missing_ok=True)
            self._fetched[name] = self._copied(name, bytes_max)
        self._fetched[name] = self._fetched.pop(name)  # the last one used is the last to go
        return self._fetched[name]

    def _copied(self, name: str, bytes_max: int) -> Path:
        target, size = self._cache / name, 0
        try:
            with store_errors(), self._opened(name) as source, target.open("wb") as file:
                while piece := source.read(PIECE):
                    size += len(piece)
                    if size > bytes_max:
                        raise UnavailableError(f"{name}: larger than the {bytes_max} bytes allowed")
                    file.write(piece)
        except OSError as error:
            raise self._failed(error) from None
        return target

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        if name in self._listed:
            with self._store.open(f"{self._folder}/{name}", "rb") as source:
                yield source
            return
        zstd = zstandard().ZstdDecompressor(max_window_size=WINDOW_MAX)
        with self._store.open(f"{self._folder}/{name}{COMPRESSED}", "rb") as source, zstd.stream_reader(source) as read:
            yield read

    def _failed(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self.url}: could not be read: {error}"[:400])


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what the library of a store raises into an `OSError`: each library has errors of its own."""
    try:
        yield
    except (OSError, TallyError):
        raise
    except Exception as error:  # noqa: BLE001
        raise OSError(f"{type(error).__name__}: {' '.join(str(error).split())}") from None


def make_folder(store: Any, folder: str) -> None:
    """Make a folder of a store. One with buckets has no folders: it would make the bucket, which nobody asked for."""
    kinds = {store.protocol} if isinstance(store.protocol, str) else {*store.protocol}
    if not kinds & WITH_BUCKETS:
        store.makedirs(folder, exist_ok=True)


def open_store(url: str) -> tuple[Any, str]:
    """The file system of fsspec for `url`, and the folder in it; raises as `RemoteAnchors`."""
    try:
        import fsspec
    except ModuleNotFoundError:
        raise not_installed("fsspec") from None
    try:
        with store_errors():
            store, folder = fsspec.core.url_to_fs(url.removeprefix(COMPRESSING))
    except OSError as error:
        raise UnavailableError(f"{url}: no store that can be read here: {error}"[:400]) from None
    return store, str(folder).rstrip("/")


def zstandard() -> Any:
    """The library that compresses; raises `UnavailableError` where it is not installed."""
    try:
        import zstandard as library
    except ModuleNotFoundError:
        raise not_installed("fsspec", "zstandard") from None
    return library
