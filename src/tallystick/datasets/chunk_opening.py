"""Opens one chunk of a corpus: its bytes, and the proofs that it stands at its place under the corpus root."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from tallystick.commitments.encoding import Json, decode
from tallystick.commitments.proofs import LeafHashes, check_inclusion, prove_inclusion
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.datasets.corpus import Corpus, Shard
from tallystick.datasets.corpus_files import check_shard
from tallystick.datasets.names import shown
from tallystick.datasets.record_opening import RecordOpening, check_record, from_base64, prove_record, read_proof
from tallystick.datasets.shards import find_shard, hash_shards, open_shard, split_hashes
from tallystick.documents.fields import fields, integer
from tallystick.errors import UnavailableError, UsageError
from tallystick.transcripts.dataset import CHUNK_BYTES, RecordCommit


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
