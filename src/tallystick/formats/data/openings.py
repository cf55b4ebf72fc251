"""Opens one record of a source or one chunk of a corpus: its bytes, and the proofs that it stands at its place."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.core.canonical_json import Json, decode, fields, hash_field, integer, items, text
from tallystick.core.digests import Hash, LeafHashes, check_inclusion, leaf_hash, prove_inclusion
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.formats.data.corpus import Corpus, Shard, find_shard, hash_shards, open_shard, split_hashes
from tallystick.formats.data.corpus_files import check_shard
from tallystick.formats.data.preparation import read_source
from tallystick.formats.data.records import RecordTree, shown, split_records
from tallystick.formats.data.samples import encode_examples, open_examples
from tallystick.formats.data.tokens import read_run_corpus
from tallystick.formats.dataset import CHUNK_BYTES, RECORDS_OF, DatasetCommitment, RecordCommit

# Opens one record of a source: its bytes, and the proof that it stands at its place.

PROOF_HASHES_MAX: Final = 64


@dataclass(frozen=True)
class RecordOpening:
    """One record, the position it claims, and the RFC 6962 audit path that shows it."""

    index: int
    record: bytes
    proof: tuple[Hash, ...]

    def to_json(self) -> Json:
        """The object as JSON values; the record is base64."""
        return {
            "index": self.index,
            "proof": [node.hex() for node in self.proof],
            "record": base64.b64encode(self.record).decode(),
        }

    @classmethod
    def from_json(cls, value: Json) -> RecordOpening:
        """Read an opening; raises `MalformedError`."""
        parts = fields(value, ("index", "proof", "record"), "opening")
        record = from_base64(parts["record"], "opening.record")
        return cls(integer(parts["index"], "opening.index"), record, read_proof(parts["proof"]))


def prove_record(tree: RecordTree, index: int, record: bytes) -> RecordOpening:
    """Open record `index`; raises `UsageError` when it is not there or is not `record`."""
    if not 0 <= index < len(tree.leaves):
        raise UsageError(f"record {index} does not exist: there are {len(tree.leaves)}, counted from 0")
    if leaf_hash(record) != tree.leaves[index]:
        raise UsageError(f"these bytes are not record {index}")
    return RecordOpening(index, record, tuple(prove_inclusion(LeafHashes(tree.leaves), index, len(tree.leaves))))


def check_record(opening: RecordOpening, commit: RecordCommit) -> None:
    """Raise `ProofError` unless the opened record stands at its position under the commitment."""
    leaf = leaf_hash(opening.record)
    check_inclusion(list(opening.proof), leaf, opening.index, commit.count, commit.root)


def open_record(folder: Path, commitment: DatasetCommitment, index: int) -> RecordOpening:
    """Record `index` of the source with the proof that it stands there."""
    records = _read_records(folder, commitment)
    tree = RecordTree.of(RECORDS_OF[commitment.kind], records)
    return prove_record(tree, index, records[index] if 0 <= index < len(records) else b"")


def _read_records(folder: Path, commitment: DatasetCommitment) -> list[bytes]:
    if commitment.kind == "digits":
        return encode_examples(open_examples(folder, commitment))
    if commitment.kind == "corpus":
        return [shard.record for shard in read_run_corpus(folder, commitment).shards]
    return split_records(commitment.kind, read_source(folder, commitment))


def read_proof(value: Json) -> tuple[Hash, ...]:
    """The hashes of an audit path; raises `MalformedError` for anything else."""
    nodes = items(value, "opening.proof")
    if len(nodes) > PROOF_HASHES_MAX:
        raise MalformedError(f"opening.proof: {len(nodes)} hashes, more than any tree needs")
    return tuple(hash_field(node, f"opening.proof[{index}]") for index, node in enumerate(nodes))


def from_base64(value: Json, what: str) -> bytes:
    """The bytes of canonical base64; raises `MalformedError` naming `what`."""
    written = text(value, what)
    try:
        record = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedError(f"{what}: not base64") from None
    if base64.b64encode(record).decode() != written:
        raise MalformedError(f"{what}: not canonical base64")
    return record


# Opens one chunk of a corpus: its bytes, and the proofs that it stands at its place under the corpus root.


@dataclass(frozen=True)
class ChunkOpening:
    """A chunk of a shard at the position it claims, and the record of the shard at the position that it claims."""

    index: int
    chunk: bytes
    proof: tuple[Hash, ...]
    shard: RecordOpening

    def to_json(self) -> Json:
        """The object as JSON values; chunk and record are base64."""
        return {
            "chunk": base64.b64encode(self.chunk).decode(),
            "index": self.index,
            "proof": [node.hex() for node in self.proof],
            "shard": self.shard.to_json(),
        }

    @classmethod
    def from_json(cls, value: Json) -> ChunkOpening:
        """Read an opening; raises `MalformedError`."""
        parts = fields(value, ("chunk", "index", "proof", "shard"), "opening")
        index, chunk = integer(parts["index"], "opening.index"), from_base64(parts["chunk"], "opening.chunk")
        return cls(index, chunk, read_proof(parts["proof"]), RecordOpening.from_json(parts["shard"]))


def check_chunk(opening: ChunkOpening, commit: RecordCommit) -> Shard:
    """The shard in which the opened chunk stands at its position; raises `ProofError` unless the corpus holds both."""
    check_record(opening.shard, commit)
    shard = Shard.from_json(decode(opening.shard.record, "opening.shard.record"), "opening.shard.record")
    check_inclusion(list(opening.proof), leaf_hash(opening.chunk), opening.index, shard.chunks, shard.root)
    return shard


def open_chunk(directory: Path, corpus: Corpus, name: str, index: int) -> ChunkOpening:
    """Chunk `index` of the shard `name`, with proofs against the root of the corpus.

    Raises:
        ProofError: the shard in `directory` is not the committed one.
        UnavailableError: there is no such shard in `directory`.
        UsageError: the corpus has no such shard, or the shard no such chunk.
    """
    place = next((place for place, shard in enumerate(corpus.shards) if shard.name == name), None)
    if place is None:
        raise UsageError(f"the corpus has no shard {shown(name)}")
    shard = corpus.shards[place]
    if not 0 <= index < shard.chunks:
        raise UsageError(f"chunk {index} of {shown(name)} does not exist: there are {shard.chunks}, counted from 0")
    file = find_shard(directory, name)
    found = next(hash_shards([file]))
    check_shard(found, shard)
    try:
        with open_shard(file) as opened:
            opened.seek(index * CHUNK_BYTES)
            chunk = opened.read(CHUNK_BYTES)
    except OSError as error:
        raise UnavailableError(f"{shown(name)}: {error.strerror}") from None
    proof = prove_inclusion(LeafHashes(split_hashes(found.leaves)), index, shard.chunks)
    return ChunkOpening(index, chunk, tuple(proof), prove_record(corpus.tree, place, shard.record))
