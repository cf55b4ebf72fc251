"""The files of an opening directory, read once per process: both parties need the same ones in every round."""

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
from tallystick.judging.opening.values import VALUES, OpenedValues
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
        return _operators(folder, *_version(folder / OPENING))
    except OSError:
        raise UnavailableError(f"{OPENING}: not there (looked in {folder})") from None


def read_values(folder: Path) -> OpenedValues:
    """The values that are opened in a folder of one's own, which nobody changes."""
    try:
        return _values(folder, *_version(folder / VALUES))
    except OSError:
        return OpenedValues(folder, is_own=True)  # it has none, or none yet


def _version(path: Path) -> tuple[int, int]:
    """Inode and time of a file: parts of the keys below, so that a replaced directory is read again."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


@lru_cache(maxsize=8)
def _operators(folder: Path, _inode: int, _modified_ns: int) -> Operators:
    return Operators(WholeOpening.read(folder))


@lru_cache(maxsize=16)
def _values(folder: Path, _inode: int, _modified_ns: int) -> OpenedValues:
    return OpenedValues(folder, is_own=True)
