"""The operators of an opening directory, read once per process: both parties need the same files in every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.cuts import Cuts
from tallystick.errors import UnavailableError
from tallystick.graphs.graph import Ref
from tallystick.judging.leaf.bundling import WholeOpening
from tallystick.judging.opening.edges import follow_operators
from tallystick.judging.opening.files import OPENING
from tallystick.tensors.spec import TensorSpec


@dataclass(frozen=True, eq=False)
class Operators:
    """A whole opening, with what follows from its graph and its records."""

    whole: WholeOpening

    @cached_property
    def cuts(self) -> Cuts:
        """Which values cross each cut."""
        return Cuts(self.whole.graph)

    @property
    def specs(self) -> Mapping[Ref, TensorSpec]:
        """The spec of every value, as the graph states it."""
        return self.cuts.specs

    @cached_property
    def digests(self) -> Mapping[Ref, Digest]:
        """The digest of every value.

        Raises `ProofError` if the operators do not follow from one another, `MalformedError` if one is no record.
        """
        return follow_operators(self.whole.opening, self.whole.graph, self.whole.lines)


def read_operators(folder: Path) -> Operators:
    """Read a directory that `tally open --operators` wrote; raises whatever `WholeOpening.read` raises."""
    try:
        found = (folder / OPENING).stat()
    except OSError:
        raise UnavailableError(f"{OPENING}: not there (looked in {folder})") from None
    return _read_version(folder, found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_version(folder: Path, _inode: int, _modified_ns: int) -> Operators:
    """Inode and time are part of the cache key, so that a replaced directory is read again."""
    return Operators(WholeOpening.read(folder))
