"""Check that a board has a manifest and everything it lists. A positive result stays true: boards delete nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol

from tallystick.commitments.digests import Digest
from tallystick.disputes.coordinators.manifest import Manifest, blobs_of
from tallystick.errors import UnavailableError

REMEMBERED_MAX: Final = 4096


class BlobIndex(Protocol):
    """A board that can list missing blobs."""

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest, checked against it; raises `UnavailableError` if they are not there."""
        ...

    def missing(self, names: Iterable[Digest]) -> Sequence[Digest]:
        """Those digests under which the board has no matching bytes."""
        ...


class WholeManifests:
    """Checks the manifests of one board; the last `REMEMBERED_MAX` complete ones are remembered."""

    def __init__(self, keeper: BlobIndex) -> None:
        self._keeper = keeper
        self._remembered = lru_cache(REMEMBERED_MAX)(self._look)

    def check(self, name: Digest) -> None:
        """Raise unless the board has a manifest under `name` and every blob that it lists.

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
