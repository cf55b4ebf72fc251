"""Proofs about an aligned run of records: that a segment's own tree lies in the tree of the whole log.

draft-ietf-plants-merkle-tree-certs §4: a run is a subtree where its start is a multiple of the smallest power
of two that is not below its length, so that each of its hashes is one of the whole tree or on its right border.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.commitments.proofs import HashReader, check_inclusion, left_size, subtree_root
from tallystick.commitments.tree import Hash, node_hash
from tallystick.errors import ProofError


def is_subtree(start: int, end: int) -> bool:
    """Whether records `start` to `end`, the latter excluded, are aligned such that they have a tree of their own.

    >>> is_subtree(8, 14), is_subtree(4, 14)
    (True, False)
    """
    return 0 <= start < end and start % (1 << (end - start - 1).bit_length()) == 0


def check_subtree_inclusion(proof: Sequence[Hash], leaf: Hash, index: int, start: int, end: int, root: Hash) -> None:
    """Raise `ProofError` unless `leaf` is record `index` of the log, in its subtree of this `root`."""
    if not is_subtree(start, end) or not start <= index < end:
        raise ProofError(f"record {index} lies in no subtree of records {start} to {end}")
    check_inclusion(proof, leaf, index - start, end - start, root)


def prove_subtree(reader: HashReader, start: int, end: int, size: int) -> list[Hash]:
    """Hashes that show the tree of records `start` to `end` to be a part of the tree of `size` records."""
    if not is_subtree(start, end) or end > size:
        raise ProofError(f"records {start} to {end} are no subtree of {size} records")
    return _prove(reader, start, end, 0, size, is_whole=True)


def check_subtree(proof: Sequence[Hash], start: int, end: int, subtree: Hash, size: int, root: Hash) -> None:
    """Raise `ProofError` unless `subtree` is the root over records `start` to `end` of the tree `root`."""
    if not is_subtree(start, end) or end > size:
        raise ProofError(f"records {start} to {end} are no subtree of {size} records")
    if proof and any(len(value) != 32 for value in (subtree, root, *proof)):
        raise ProofError("a hash is not 32 bytes long")
    remaining = list(proof)
    if _implied(remaining, subtree, start, end, size, is_whole=True) != (subtree, root) or remaining:
        raise ProofError(f"records {start} to {end} of the tree {root.hex()[:12]}… have another root")


def _prove(reader: HashReader, start: int, end: int, offset: int, size: int, is_whole: bool) -> list[Hash]:
    if (start, end) == (0, size):
        return [] if is_whole else [subtree_root(reader, offset, size)]
    split = left_size(size)
    if end <= split:
        inner = _prove(reader, start, end, offset, split, is_whole)
        return [*inner, subtree_root(reader, offset + split, size - split)]
    inner = _prove(
        reader, max(start - split, 0), end - split, offset + split, size - split, is_whole and split <= start
    )
    return [*inner, subtree_root(reader, offset, split)]


def _implied(proof: list[Hash], subtree: Hash, start: int, end: int, size: int, is_whole: bool) -> tuple[Hash, Hash]:
    """The roots of subtree and tree that a proof leads to; takes the proof's hashes from its end."""
    if (start, end) == (0, size):
        found = subtree if is_whole else _take(proof)
        return found, found
    sibling, split = _take(proof), left_size(size)
    if end <= split:
        old, new = _implied(proof, subtree, start, end, split, is_whole)
        return old, node_hash(new, sibling)
    if split <= start:
        old, new = _implied(proof, subtree, start - split, end - split, size - split, is_whole)
        return old, node_hash(sibling, new)
    old, new = _implied(proof, subtree, 0, end - split, size - split, is_whole=False)
    return node_hash(sibling, old), node_hash(sibling, new)


def _take(proof: list[Hash]) -> Hash:
    if not proof:
        raise ProofError("the proof has too few hashes")
    return proof.pop()
