"""The operators of an opening directory, read once per process: both parties ask the same files in every round."""

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
        """Where values cross."""
        return Cuts(self.whole.graph)

    @property
    def specs(self) -> Mapping[Ref, TensorSpec]:
        """The spec of every value, as the graph states it."""
        return self.cuts.specs

    @cached_property
    def digests(self) -> Mapping[Ref, Digest]:
        """The digest of every value.

        Raises `ProofError` where the operators do not follow from one another, `MalformedError` where one is no record.
        """
        return follow_operators(self.whole.opening, self.whole.graph, self.whole.lines)


def read_operators(folder: Path) -> Operators:
    """Read a directory as `tally open --operators` writes it; raises what `WholeOpening.read` raises."""
    try:
        found = (folder / OPENING).stat()
    except OSError:
        raise UnavailableError(f"{OPENING}: not there (looked in {folder})") from None
    return _read(folder, found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _read(folder: Path, _number: int, _time: int) -> Operators:
    return Operators(WholeOpening.read(folder))
