"""Manifests that lie at a board with all that they list: what was whole once stays whole, as boards delete nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.manifest import Manifest, blobs_of
from tallystick.errors import UnavailableError

REMEMBERED_MAX: Final = 4096


class BlobIndex(Protocol):
    """A board that can say what it lacks without reading what it has."""

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest, checked against it; raises `UnavailableError` where they are not there."""
        ...

    def missing(self, names: Iterable[Digest]) -> Sequence[Digest]:
        """Those under which nothing lies that hashes to them."""
        ...


class WholeManifests:
    """The manifests of one board that are whole; the last that were found so are remembered."""

    def __init__(self, keeper: BlobIndex) -> None:
        self._keeper = keeper
        self._remembered = lru_cache(REMEMBERED_MAX)(self._look)

    def check(self, name: Digest) -> None:
        """Return if a manifest lies under `name`, and every blob that it lists at the board.

        Raises:
            UnavailableError: The manifest, or a blob that it lists, is not there.
            MalformedError: What lies under `name` is no manifest.
        """
        self._remembered(name)

    def _look(self, name: Digest) -> None:
        listed = blobs_of(Manifest.from_bytes(self._keeper.get(name), "manifest"))
        missing = self._keeper.missing(listed)
        if missing:
            raise UnavailableError(f"{len(missing)} of the {len(listed)} blobs listed are not at the board")
