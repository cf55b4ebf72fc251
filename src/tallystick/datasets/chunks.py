"""Ordered chunks: bytes of any length under one RFC 6962 root, so that each can be shown at its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from tallystick.commitments.proofs import LeafHashes, prove_inclusion
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.transcripts.dataset import CHUNK_BYTES


def chunk_count(size: int) -> int:
    """How many chunks hold `size` bytes; the last one may be shorter, none is empty."""
    return -(-size // CHUNK_BYTES)


@dataclass(frozen=True)
class Chunks:
    """The leaf hashes of consecutive 1 MiB chunks, and the number of bytes they cover."""

    size: int
    leaves: tuple[Hash, ...]

    @cached_property
    def root(self) -> Hash:
        """The RFC 6962 root over the chunks."""
        return tree_root(self.leaves)

    def prove(self, index: int) -> list[Hash]:
        """The inclusion proof of chunk `index`."""
        return prove_inclusion(LeafHashes(self.leaves), index, len(self.leaves))


@dataclass
class ChunkHasher:
    """Hashes a stream of bytes in chunks while keeping at most one chunk in memory."""

    _pending: bytearray = field(default_factory=bytearray)
    _leaves: list[Hash] = field(default_factory=list)
    _size: int = 0

    def update(self, data: bytes) -> None:
        """Append `data` to the stream."""
        self._size += len(data)
        self._pending += data
        while len(self._pending) >= CHUNK_BYTES:
            self._leaves.append(leaf_hash(bytes(self._pending[:CHUNK_BYTES])))
            del self._pending[:CHUNK_BYTES]

    def finish(self) -> Chunks:
        """The chunks of everything that was appended."""
        rest = [leaf_hash(bytes(self._pending))] if self._pending else []
        return Chunks(self._size, tuple(self._leaves + rest))
