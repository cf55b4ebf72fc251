"""The records of a claim as leaves: each with the proof of its place, and its canonical line as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.commitments.tree import leaf_hash
from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.protocols import OpenedLeaves
from tallystick.errors import UnavailableError
from tallystick.store.log import OpenedLine as OpenedLine, open_line, read_lines


@dataclass(frozen=True)
class Records:
    """The records of a finished run, in its transcript of `size` lines."""

    path: Path
    size: int

    def partition(self, places: Sequence[int]) -> OpenedLeaves:
        """The records at `places`."""
        lines = [self.line(place) for place in places]
        return OpenedLeaves(tuple(map(_cut, lines)), {record_file(each.index): each.line for each in lines})

    def cut(self, place: int) -> Cut:
        """One record as a leaf."""
        return _cut(self.line(place))

    def line(self, place: int) -> OpenedLine:
        """One record with its proof."""
        return open_line(self.path, place, self.size)

    def place_of(self, leaf: str) -> int:
        """The place of the record with this leaf hash; raises `UnavailableError` if there is none."""
        for place, line in enumerate(read_lines(self.path)):
            if leaf_hash(line).hex() == leaf:
                return place
        raise UnavailableError(f"{self.path.name}: holds no record with the leaf {leaf[:16]}…")


def record_file(place: int) -> str:
    """The name of a record's file among those of a partition."""
    return f"records/{place}.json"


def _cut(opened: OpenedLine) -> Cut:
    return Cut(leaf=leaf_hash(opened.line).hex(), proof=tuple(each.hex() for each in opened.proof))
