"""Corpora: a directory of shards named by one digest, so that each shard and each chunk of it can be shown.

Every shard has an RFC 6962 root over its own 1 MiB chunks. The shards, in the order of their names, are the records of
a tree of their own: its root names the corpus. See `spec/corpus.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tallystick.commitments.encoding import Json, decode, encode
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.datasets.chunks import chunk_count
from tallystick.datasets.names import NameOrder, shown
from tallystick.datasets.records import RecordTree
from tallystick.documents.fields import constant, fields, hash_field, integer, items, text
from tallystick.errors import MalformedError, ProofError
from tallystick.transcripts.dataset import CHUNK_BYTES, RecordCommit

COMMIT_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class Shard:
    """A file of a corpus: its name below the directory, its bytes, and the root over their chunks."""

    name: str
    size: int
    root: Hash

    @property
    def chunks(self) -> int:
        """The number of 1 MiB chunks."""
        return chunk_count(self.size)

    @property
    def record(self) -> bytes:
        """The record by which the corpus commits to this shard."""
        return encode(self.to_json())

    def to_json(self) -> Json:
        """The object as JSON values."""
        return {"bytes": self.size, "name": self.name, "root": self.root.hex()}

    @classmethod
    def from_json(cls, value: Json, what: str) -> Shard:
        """Read what `to_json` gives; raises `MalformedError` naming the field under `what`."""
        parts = fields(value, ("bytes", "name", "root"), what)
        size = integer(parts["bytes"], f"{what}.bytes")
        return cls(text(parts["name"], f"{what}.name"), size, hash_field(parts["root"], f"{what}.root"))


@dataclass(frozen=True)
class Corpus:
    """The shards of a directory in the order of their names."""

    shards: tuple[Shard, ...]

    @property
    def size(self) -> int:
        """The bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    @cached_property
    def tree(self) -> RecordTree:
        """The tree of which the shards are the records."""
        return RecordTree("shards", tuple(leaf_hash(shard.record) for shard in self.shards))

    @property
    def commit(self) -> RecordCommit:
        """The number of shards and the root over them; its digest is the name of the corpus."""
        return self.tree.commit

    def to_bytes(self) -> bytes:
        """The content of `commit.json`: canonical JSON."""
        return encode(
            {
                "chunk_bytes": CHUNK_BYTES,
                "corpus": self.commit.digest,
                "shards": [shard.to_json() for shard in self.shards],
                "version": 1,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "commit") -> Corpus:
        """Read a commit whose parts agree with each other; raises `MalformedError`."""
        value = decode(data, what, bytes_max=COMMIT_BYTES_MAX)
        parts = fields(value, ("chunk_bytes", "corpus", "shards", "version"), what)
        constant(parts["version"], 1, f"{what}.version")
        constant(parts["chunk_bytes"], CHUNK_BYTES, f"{what}.chunk_bytes")
        entries = enumerate(items(parts["shards"], f"{what}.shards"))
        corpus = cls(tuple(Shard.from_json(entry, f"{what}.shards[{index}]") for index, entry in entries))
        check_names(shard.name for shard in corpus.shards)
        if parts["corpus"] != corpus.commit.digest:
            raise MalformedError(f"{what}.corpus: not the digest of the shards")
        return corpus


def check_names(names: Iterable[str]) -> None:
    """Raise `MalformedError` unless there are names, portable, unlike each other, and sorted by their bytes."""
    order, count = NameOrder(), 0
    for name in names:
        order.add(name)
        if name.endswith("/"):
            raise MalformedError(f"{shown(name)}: a directory, not a shard")
        count += 1
    if not count:
        raise MalformedError("a corpus without a shard")


def check_shards_named(claimed: Corpus, found: Iterable[tuple[str, int]]) -> None:
    """Compare names and sizes, which takes no reading.

    Raises:
        ProofError: naming the first shard, in the order of names, that is missing, was added or has another size.
    """
    expected, present = {shard.name: shard.size for shard in claimed.shards}, dict(found)
    for name in sorted(expected.keys() | present.keys(), key=str.encode):
        if name not in present:
            raise ProofError(f"{shown(name)} is missing")
        if name not in expected:
            raise ProofError(f"{shown(name)} is not part of the commit")
        if present[name] != expected[name]:
            raise ProofError(f"{shown(name)} differs: {present[name]} bytes, not {expected[name]}")
