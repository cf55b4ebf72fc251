"""Opens one record of a source or one chunk of a corpus: its bytes, and the proofs that it stands at its place."""

from __future__ import annotations

from pathlib import Path

from tallystick.core.digests import LeafHashes, check_inclusion, hashes_from, leaf_hash, prove_inclusion
from tallystick.core.documents import Base64Bytes, Count, Document, Proof
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.formats.data.corpus import Corpus, Shard, check_shard, find_shard, hash_shards, open_shard, split_hashes
from tallystick.formats.data.preparation import read_source
from tallystick.formats.data.records import RecordTree, shown, split_records
from tallystick.formats.data.samples import encode_examples, open_examples
from tallystick.formats.data.tokens import read_run_corpus
from tallystick.formats.dataset import CHUNK_BYTES, RECORDS_OF, DatasetCommitment, RecordCommit

# Opens one record of a source: its bytes, and the proof that it stands at its place.


class RecordOpening(Document):
    """One record in base64, the position it claims, and the RFC 6962 audit path that shows it."""

    index: Count
    proof: Proof
    record: Base64Bytes


def prove_record(tree: RecordTree, index: int, record: bytes) -> RecordOpening:
    """Open record `index`; raises `UsageError` when it is not there or is not `record`."""
    if not 0 <= index < len(tree.leaves):
        raise UsageError(f"record {index} does not exist: there are {len(tree.leaves)}, counted from 0")
    if leaf_hash(record) != tree.leaves[index]:
        raise UsageError(f"these bytes are not record {index}")
    proof = prove_inclusion(LeafHashes(tree.leaves), index, len(tree.leaves))
    return RecordOpening(index=index, proof=tuple(node.hex() for node in proof), record=record)


def check_record(opening: RecordOpening, commit: RecordCommit) -> None:
    """Raise `ProofError` unless the opened record stands at its position under the commitment."""
    leaf = leaf_hash(opening.record)
    check_inclusion(hashes_from(opening.proof), leaf, opening.index, commit.count, commit.root)


def open_record(folder: Path, commitment: DatasetCommitment, index: int) -> RecordOpening:
    """Record `index` of the source with the proof that it stands there."""
    records = _read_records(folder, commitment)
    tree = RecordTree.of(RECORDS_OF[commitment.kind], records)
    return prove_record(tree, index, records[index] if 0 <= index < len(records) else b"")


def _read_records(folder: Path, commitment: DatasetCommitment) -> list[bytes]:
    if commitment.kind == "digits":
        return encode_examples(open_examples(folder, commitment))
    if commitment.kind == "corpus":
        return [shard.to_bytes() for shard in read_run_corpus(folder, commitment).shards]
    return split_records(commitment.kind, read_source(folder, commitment))


# Opens one chunk of a corpus: its bytes, and the proofs that it stands at its place under the corpus root.


class ChunkOpening(Document):
    """A chunk of a shard at the position it claims, and the record of the shard at the position that it claims."""

    chunk: Base64Bytes
    index: Count
    proof: Proof
    shard: RecordOpening


def check_chunk(opening: ChunkOpening, commit: RecordCommit) -> Shard:
    """The shard in which the opened chunk stands at its position; raises `ProofError` unless the corpus holds both."""
    check_record(opening.shard, commit)
    shard = Shard.from_bytes(opening.shard.record, "opening.shard.record")
    check_inclusion(hashes_from(opening.proof), leaf_hash(opening.chunk), opening.index, shard.chunks, shard.root)
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
    hashed = next(hash_shards([file]))
    check_shard(hashed, shard)
    try:
        with open_shard(file) as opened:
            opened.seek(index * CHUNK_BYTES)
            chunk = opened.read(CHUNK_BYTES)
    except OSError as error:
        raise UnavailableError(f"{shown(name)}: {error.strerror}") from None
    proof = prove_inclusion(LeafHashes(split_hashes(hashed.leaves)), index, shard.chunks)
    record = prove_record(corpus.tree, place, shard.to_bytes())
    return ChunkOpening(chunk=chunk, index=index, proof=tuple(node.hex() for node in proof), shard=record)
