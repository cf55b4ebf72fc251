"""The Merkle tree of RFC 6962 §2.1: hashes, roots, and a frontier that grows; the proofs are in `commitments.proofs`.

A subtree without a sibling moves up one level and is never duplicated. Otherwise a tree of 3 records would have the
same root as the tree of 4 in which the last record is repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

Hash = NewType("Hash", bytes)

LEAF_PREFIX: Final = b"\x00"  # RFC 6962 §2.1: other prefixes, so that a leaf is never taken for a node
NODE_PREFIX: Final = b"\x01"
EMPTY_ROOT: Final = Hash(hashlib.sha256(b"").digest())


def leaf_hash(record: bytes) -> Hash:
    """The hash of a leaf that holds `record`."""
    return Hash(hashlib.sha256(LEAF_PREFIX + record).digest())


def node_hash(left: bytes, right: bytes) -> Hash:
    """The hash of the node above two subtrees."""
    return Hash(hashlib.sha256(NODE_PREFIX + left + right).digest())


def tree_root(leaves: Sequence[Hash]) -> Hash:
    """The root of the tree with these leaf hashes."""
    level = list(leaves)
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) & ~1 :]
    return level[0]


@dataclass(frozen=True)
class Frontier:
    """A tree of `size` records, stored as the roots of its complete subtrees, largest first."""

    size: int
    peaks: tuple[Hash, ...]

    @classmethod
    def empty(cls) -> Frontier:
        """The tree of no records."""
        return cls(0, ())

    def append(self, leaf: Hash) -> Frontier:
        """The tree with one more record; takes O(log n) hashes at most, O(1) on average."""
        return self.extend((leaf,))

    def extend(self, leaves: Sequence[Hash]) -> Frontier:
        """The tree with these records behind the others."""
        peaks = list(self.peaks)
        for size, leaf in enumerate(leaves, self.size):
            grown = leaf
            while size & 1:
                grown = node_hash(peaks.pop(), grown)
                size >>= 1
            peaks.append(grown)
        return Frontier(self.size + len(leaves), tuple(peaks))

    def root(self) -> Hash:
        """The root: the peaks hashed together from the smallest to the largest."""
        if not self.peaks:
            return EMPTY_ROOT
        root = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            root = node_hash(peak, root)
        return root
