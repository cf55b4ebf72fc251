"""Where the anchors of a run are kept while it is recorded: on the disk, and copies of all in another store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tallystick.errors import UnavailableError
from tallystick.store.remote_anchors import (
    COMPRESSED,
    COMPRESSING,
    make_folder,
    open_store,
    store_errors,
    zstandard,
)
from tallystick.store.retention import Retention
from tallystick.transcripts.record import anchor_file


@dataclass(frozen=True)
class AnchorKeeping:
    """Which anchors stay in the run directory (`None`: all), and the URL of the store that gets a copy of each.

    Behind `zstd::` before the URL, the copies are compressed.
    """

    retention: Retention | None = None
    url: str | None = None

    @classmethod
    def of(cls, keep: str | None, url: str | None) -> Self:
        """`N` or `every:K`, and a URL that fsspec knows.

        Raises `UsageError` for another `keep`, and `UnavailableError` for another URL, before anything is written.
        """
        if url is not None:
            open_store(url)
        if url is not None and url.startswith(COMPRESSING):
            zstandard()
        return cls(None if keep is None else Retention.parse(keep), url)


ALL_HERE: Final = AnchorKeeping()
LEVEL: Final = 1
"""Of zstd: more takes longer, and saves nothing of floating-point numbers."""


class AnchorCopies:
    """Copies the files of anchors to the folder at `url`, compressed by zstd where it begins with `zstd::`.

    Raises `UnavailableError` where fsspec or the library for this kind is missing, or the store refuses a file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._compresses = url.startswith(COMPRESSING)
        self._store, self._folder = open_store(url)
        self._do(make_folder, self._store, self._folder)

    def put(self, path: Path, mark: int) -> None:
        """Copy what the run directory at `path` holds of anchor `mark`: one file, or what changed and then its list."""
        stem = Path(anchor_file(mark)).stem
        for file in sorted((path / "anchors").glob(f"{stem}.*"), reverse=True):
            self._do(self._put, file)

    def _put(self, file: Path) -> None:
        """Copy a file in one form, and remove what an earlier attempt left in the other one."""
        plain = f"{self._folder}/{file.name}"
        compressed, other = plain + COMPRESSED, plain if self._compresses else plain + COMPRESSED
        if self._compresses:
            with file.open("rb") as source, self._store.open(compressed, "wb") as out:
                zstandard().ZstdCompressor(level=LEVEL).copy_stream(source, out)
        else:
            self._store.put_file(str(file), plain)
        if self._store.exists(other):
            self._store.rm_file(other)

    def _do(self, call: Any, *args: Any, **kwargs: Any) -> None:
        try:
            with store_errors():
                call(*args, **kwargs)
        except OSError as error:
            raise UnavailableError(f"{self.url}: could not be written: {error}"[:400]) from None
