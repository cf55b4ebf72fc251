"""Opens one record of a source: its bytes, and the proof that it stands at its place."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.commitments.encoding import Json
from tallystick.commitments.proofs import LeafHashes, check_inclusion, prove_inclusion
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.datasets.examples import encode_examples, open_examples
from tallystick.datasets.opened import read_source
from tallystick.datasets.records import RecordTree
from tallystick.datasets.sources import split_records
from tallystick.documents.fields import fields, hash_field, integer, items, text
from tallystick.errors import MalformedError, UsageError
from tallystick.transcripts.dataset import RECORDS_OF, DatasetCommitment, RecordCommit

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
        from tallystick.datasets.corpus_tokens import read_run_corpus

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
