"""Domain-separated digests, and the Merkle trees of RFC 6962 over them, with their proofs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from tallystick.core.errors import MalformedError, ProofError

# Domain-separated digests: SHA-256 over `tallystick/<noun>/v1`, a line feed, and the bytes.

Digest = NewType("Digest", str)
"""`sha256:` and 64 lower-case hexadecimal digits."""

# fmt: off
NOUNS: Final = frozenset({
    "batch", "blob", "bucket", "bundle", "calibration", "challenge", "claim", "cluster", "coordinator", "dataset",
    "directions", "dispute", "draw", "entry", "environment", "evidence", "graph", "header", "hidden", "manifest",
    "model", "move", "nonce", "opening", "permutation", "policy", "projection", "receipt", "record", "report", "rules",
    "rows", "sample", "sampler", "seal", "seed", "spec", "state", "summary", "tensor", "tokenizer", "tokens", "trace",
    "vote",
})
# fmt: on
PREFIX: Final = "sha256:"
NO_DIGEST: Final = "not a digest: sha256: and 64 lower-case hexadecimal digits"
_FORM: Final = re.compile(r"sha256:[0-9a-f]{64}")


def digest(noun: str, data: bytes) -> Digest:
    """The digest of `data` in the domain `noun`; the same bytes in two domains have two digests."""
    assert noun in NOUNS, f"{noun} is not in the table of domains"
    return digest_from(hashlib.sha256(f"tallystick/{noun}/v1\n".encode() + data).digest())


def parse_digest(text: object, what: str) -> Digest:
    """`text` as a digest; raises `MalformedError` naming `what` unless it is `sha256:` and 64 lower-case digits."""
    if not isinstance(text, str) or not is_digest(text):
        raise MalformedError(f"{what}: {NO_DIGEST}")
    return Digest(text)


def is_digest(text: str) -> bool:
    """Whether `text` is `sha256:` and 64 lower-case hexadecimal digits."""
    return _FORM.fullmatch(text) is not None


def digest_bytes(name: Digest) -> bytes:
    """The digest as 32 raw bytes."""
    return bytes.fromhex(name.removeprefix(PREFIX))


def digest_from(raw: bytes) -> Digest:
    """The digest written from its 32 raw bytes."""
    assert len(raw) == 32
    return Digest(PREFIX + raw.hex())


# The Merkle tree of RFC 6962 §2.1: hashes, roots, and a frontier that grows.
#
# A subtree without a sibling moves up one level and is never duplicated. Otherwise a tree of 3 records would have the
# same root as the tree of 4 in which the last record is repeated.

Hash = NewType("Hash", bytes)

LEAF_PREFIX: Final = b"\x00"  # RFC 6962 §2.1: other prefixes, so that a leaf is never taken for a node
NODE_PREFIX: Final = b"\x01"
HASH_BYTES: Final = 32
EMPTY_ROOT: Final = Hash(hashlib.sha256(b"").digest())


def leaf_hash(record: bytes) -> Hash:
    """The hash of a leaf that holds `record`."""
    return Hash(hashlib.sha256(LEAF_PREFIX + record).digest())


def node_hash(left: bytes, right: bytes) -> Hash:
    """The hash of the node above two subtrees."""
    return Hash(hashlib.sha256(NODE_PREFIX + left + right).digest())


def hashes_from(texts: Iterable[str]) -> list[Hash]:
    """Hashes out of their hexadecimal digits."""
    return [Hash(bytes.fromhex(text)) for text in texts]


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


# Proofs about Merkle trees: a record is in a tree, and a tree is a prefix of another (RFC 6962 §2.1).


class HashReader(Protocol):
    """A source of the roots of complete subtrees; level 0 is the leaves."""

    def hashes(self, level: int, start: int, count: int) -> list[Hash]:
        """The roots of the complete subtrees `start` … `start + count − 1` of 2^`level` leaves each."""
        ...


@dataclass(frozen=True)
class LeafHashes:
    """All leaves in memory, as a `HashReader`."""

    leaves: Sequence[Hash]

    def hashes(self, level: int, start: int, count: int) -> list[Hash]:
        """The roots of complete subtrees, computed from the leaves."""
        width = 1 << level
        return [tree_root(self.leaves[i * width : (i + 1) * width]) for i in range(start, start + count)]


def prove_inclusion(reader: HashReader, index: int, size: int) -> list[Hash]:
    """The audit path of record `index` in the tree of `size` records, lowest first (RFC 6962 §2.1.1)."""
    if not 0 <= index < size:
        raise ProofError(f"record {index} lies outside a tree of {size} records")
    return _path(reader, index, 0, size)


def check_inclusion(proof: Sequence[Hash], leaf: Hash, index: int, size: int, root: Hash) -> None:
    """Raise `ProofError` unless `leaf` is record `index` of the tree `root` of `size` records."""
    if not 0 <= index < size:
        raise ProofError(f"record {index} lies outside a tree of {size} records")
    _check_lengths(leaf, root, *proof)
    inner, border = _proof_shape(index, size)
    if len(proof) != inner + border:
        raise ProofError(f"a proof of {len(proof)} hashes for record {index} of {size}; {inner + border} are needed")
    computed = _chain_inner(leaf, proof[:inner], index)
    for sibling in proof[inner:]:
        computed = node_hash(sibling, computed)
    if computed != root:
        raise ProofError(f"record {index} is not in the tree {root.hex()[:12]}…")


def prove_consistency(reader: HashReader, old_size: int, new_size: int) -> list[Hash]:
    """Hashes that prove the old tree to be a prefix of the new one (RFC 6962 §2.1.2)."""
    if not 0 <= old_size <= new_size:
        raise ProofError(f"a tree of {old_size} records is no prefix of one of {new_size}")
    if old_size in (0, new_size):
        return []
    return _subproof(reader, old_size, 0, new_size, is_whole=True)


def check_consistency(proof: Sequence[Hash], old_size: int, old_root: Hash, new_size: int, new_root: Hash) -> None:
    """Raise `ProofError` unless `old_root` is a prefix of the tree `new_root` (RFC 9162 §2.1.4.2)."""
    if not 0 <= old_size <= new_size:
        raise ProofError(f"a tree of {old_size} records is no prefix of one of {new_size}")
    if old_size == new_size:
        _require(not proof and old_root == new_root, "trees of one size have one root and need no proof")
        _require(new_size > 0 or new_root == EMPTY_ROOT, "this is not the root of the empty tree")
        return
    _require(old_size > 0, "nothing can be shown about the empty tree")
    _check_lengths(old_root, new_root, *proof)
    trailing = (old_size & -old_size).bit_length() - 1
    is_complete = old_size == 1 << trailing
    inner, border = _proof_shape(old_size - 1, new_size)
    start = 0 if is_complete else 1
    inner -= trailing
    _require(
        len(proof) == start + inner + border,
        f"a consistency proof of {len(proof)} hashes has the wrong length",
    )
    seed, path = (old_root, proof) if is_complete else (proof[0], proof[1:])
    mask = (old_size - 1) >> trailing
    old, new = seed, _chain_inner(seed, path[:inner], mask)
    for level, sibling in enumerate(path[:inner]):
        if mask >> level & 1:
            old = node_hash(sibling, old)
    for sibling in path[inner:]:
        old, new = node_hash(sibling, old), node_hash(sibling, new)
    _require(old == old_root, "the proof does not lead to the old root")
    _require(new == new_root, "the proof does not lead to the new root")


def _proof_shape(index: int, size: int) -> tuple[int, int]:
    """How many siblings the path has before it joins the right border of the tree, and how many after."""
    inner = (index ^ (size - 1)).bit_length()
    return inner, (index >> inner).bit_count()


def _chain_inner(seed: Hash, siblings: Sequence[Hash], index: int) -> Hash:
    for level, sibling in enumerate(siblings):
        seed = node_hash(sibling, seed) if index >> level & 1 else node_hash(seed, sibling)
    return seed


def _path(reader: HashReader, index: int, start: int, size: int) -> list[Hash]:
    if size == 1:
        return []
    split = left_size(size)
    if index < split:
        return [*_path(reader, index, start, split), subtree_root(reader, start + split, size - split)]
    return [*_path(reader, index - split, start + split, size - split), subtree_root(reader, start, split)]


def _subproof(reader: HashReader, old_size: int, start: int, size: int, is_whole: bool) -> list[Hash]:
    if old_size == size:
        return [] if is_whole else [subtree_root(reader, start, size)]
    split = left_size(size)
    if old_size <= split:
        return [
            *_subproof(reader, old_size, start, split, is_whole),
            subtree_root(reader, start + split, size - split),
        ]
    rest = _subproof(reader, old_size - split, start + split, size - split, is_whole=False)
    return [*rest, subtree_root(reader, start, split)]


def subtree_root(reader: HashReader, start: int, size: int) -> Hash:
    """The root over `size` leaves from `start`; `start` is a multiple of the size of each complete subtree in it."""
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return reader.hashes(level, start >> level, 1)[0]
    split = left_size(size)
    return node_hash(subtree_root(reader, start, split), subtree_root(reader, start + split, size - split))


def left_size(size: int) -> int:
    """The number of leaves in the left subtree of the root: the largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _check_lengths(*hashes: bytes) -> None:
    _require(all(len(value) == 32 for value in hashes), "a hash is not 32 bytes long")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ProofError(message)
